"""Keys and users of the config file: enough to let the first operator in. Secrets are in files of
their own, or as hashes in the config file; they are read at the start and when it is read again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fanlog.config_security import AccountTable, KeyTable, SecurityOptions, UserTable
from fanlog.errors import ConfigError, FanlogError
from fanlog.identity import Allowance, Role, Rules
from fanlog.security.account_checks import check_account_name
from fanlog.security.directory import AccountEntry, KeyEntry, UserEntry
from fanlog.security.keys import ID_CHARACTERS, digest_of, is_digest, maybe_parse
from fanlog.security.passwords import check_password, hash_password, is_hash
from fanlog.security.rules import check_rules

logger = logging.getLogger("fanlog.security")

ADMIN = "admin"
_FILE_BYTES_MAX = 64 * 1024
_OTHERS = 0o077


def read_entries(
    options: SecurityOptions, keys: dict[str, KeyTable], users: dict[str, UserTable]
) -> list[AccountEntry]:
    """All keys and users that the config file has. Raises ConfigError that names the wrong one."""
    found: dict[str, AccountEntry] = {}
    for where, entry in _entries(options, keys, users):
        if entry.name in found:
            raise ConfigError(f"{where}: there are two keys or users {entry.name!r}. Rename one.")
        found[entry.name] = entry
    ids = [entry.id for entry in found.values() if isinstance(entry, KeyEntry)]
    if len(set(ids)) != len(ids):
        raise ConfigError("Two keys of the config file have the same id: generate another key.")
    return list(found.values())


def _entries(
    options: SecurityOptions, keys: dict[str, KeyTable], users: dict[str, UserTable]
) -> Iterator[tuple[str, AccountEntry]]:
    if options.admin_key_file:
        where = "security.admin_key_file"
        text = read_secret_file(options.admin_key_file, where)
        yield where, _key(ADMIN, text, Rules(role=Role.ADMIN), where)
    for name, table in keys.items():
        yield f"keys.{name}", _checked(f"keys.{name}", name, table)
    for name, table in users.items():
        yield f"users.{name}", _checked(f"users.{name}", name, table)


def _checked(where: str, name: str, table: KeyTable | UserTable) -> AccountEntry:
    try:
        check_account_name(name)
        rules = check_rules(_rules(table))
        if isinstance(table, KeyTable):
            return _key_of(where, name, table, rules)
        return _user_of(where, name, table, rules)
    except ConfigError:
        raise
    except FanlogError as fault:
        raise ConfigError(f"{where}: {fault}") from fault


def _rules(table: AccountTable) -> Rules:
    return Rules(
        role=table.role,
        publish=table.publish,
        subscribe=table.subscribe,
        manage=table.manage,
        groups=table.groups,
        queues=table.queues,
        describe=table.describe,
    )


def _allowance(table: AccountTable) -> Allowance:
    names = Allowance.__struct_fields__
    return Allowance(**{name: getattr(table, name) for name in names})


def _key(name: str, text: str, rules: Rules, where: str) -> KeyEntry:
    parsed = maybe_parse(text)
    if parsed is None:
        raise ConfigError(
            f"{where}: the file does not contain a key. Make one with: fanlog key generate"
        )
    digest = digest_of(parsed.secret)
    return KeyEntry(name=name, id=parsed.id, digest=digest, rules=rules, source="file")


def _key_of(where: str, name: str, table: KeyTable, rules: Rules) -> KeyEntry:
    if bool(table.hash) == bool(table.key_file):
        raise ConfigError(f"{where}: give either hash or key_file. fanlog key generate makes both.")
    if table.key_file:
        entry = _key(name, read_secret_file(table.key_file, f"{where}.key_file"), rules, where)
    else:
        id, _, digest = table.hash.partition(":")
        if len(id) != ID_CHARACTERS or not is_digest(digest):
            raise ConfigError(
                f"{where}.hash is not the hash of a key. Get it with: fanlog key generate"
            )
        entry = KeyEntry(name=name, id=id, digest=digest, rules=rules, source="file")
    return msgspec.structs.replace(entry, allowance=_allowance(table), comment=table.comment)


def _user_of(where: str, name: str, table: UserTable, rules: Rules) -> UserEntry:
    if table.password_hash and table.password_file:
        raise ConfigError(f"{where}: give either password_hash or password_file.")
    kept = table.password_hash
    if kept and not is_hash(kept):
        raise ConfigError(
            f"{where}.password_hash is not the hash of a password. Get it with: fanlog user hash"
        )
    if table.password_file:
        kept = hash_password(
            check_password(read_secret_file(table.password_file, f"{where}.password_file"))
        )
    return UserEntry(
        name=name,
        rules=rules,
        password=kept,
        certificates=table.certificates,
        allowance=_allowance(table),
        comment=table.comment,
        source="file",
    )


def read_secret_file(path: str, where: str) -> str:
    """The one line of a file. The error names the file, and shows nothing of it."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        mode = file.stat().st_mode
        text = data.decode().strip()
    except OSError as fault:
        raise ConfigError(f"{where}: {path} can't be read: {fault.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not text.") from None
    if not text or "\n" in text or len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{where}: {path} must contain only the secret, in one line.")
    if mode & _OTHERS:
        logger.warning(
            "%s: other users of this machine can read %s. Run: chmod 600 %s", where, path, path
        )
    return text
