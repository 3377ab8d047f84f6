"""ACL: who the users are, and what they may do, as Redis words it. Accounts are changed with
`fanlog key` and `fanlog user`; these commands only tell.

A rule of ours has one list of topics for publishing and another for reading. Redis has one for
both, and selectors: where the two lists differ, each is a selector with its own channels. A pattern
is shown as a glob. One that denies is shown with its `!`, which Redis does not know.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fanlog.broker.authority import Permit
from fanlog.errors import FanlogError
from fanlog.format.channels import pattern_over, topic_of
from fanlog.format.resp_replies import OK, Distinct, ErrorReply, MapReply, RespReply
from fanlog.identity import Account, Identity, Role, Rules, Verb
from fanlog.listeners.redis.connection_commands import maybe_number, text_of
from fanlog.listeners.redis.login import DEFAULT_ACCOUNT
from fanlog.listeners.redis.peer import CommandHandler, CommandSpec, RedisPeer
from fanlog.listeners.redis.pubsub_commands import help_lines
from fanlog.security.gate import SecurityGate

if TYPE_CHECKING:
    from fanlog.format.resp import Command

_PUBLISHING = ("publish", "spublish")
_FOLLOWING = ("subscribe", "psubscribe", "ssubscribe")
_ALL = (">",)
_EVERYTHING = Rules(role=Role.ADMIN)
_PASSWORD_BITS = 256
_PASSWORD_BITS_MAX = 4096
_ELSEWHERE = ErrorReply(
    "ERR Accounts are changed with the commands `fanlog key` and `fanlog user`, or over HTTP"
)

_HELP = """\
ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:
CAT [<category>]
    List all commands that belong to <category>, or all command categories
    when no category is specified.
DRYRUN <username> <command> [<arg> ...]
    Returns whether the user can execute the given command without executing the command.
GETUSER <username>
    Get the user's details.
GENPASS [<bits>]
    Generate a secure 256-bit user password. The optional `bits` argument can
    be used to specify a different size.
LIST
    Show users details in config file format.
LOG [<count> | RESET]
    Show the ACL log entries. They are in the audit log here.
USERS
    List all the registered usernames.
WHOAMI
    Return the current connection username.
HELP
    Prints this help."""


class _Shown(NamedTuple):
    """The permissions of an account, in Redis's syntax."""

    flags: tuple[str, ...]
    commands: str
    keys: str
    channels: str
    selectors: tuple[tuple[str, str], ...] = ()


def _accounts(session: RedisPeer) -> Iterator[Account]:
    """All accounts by name; without logins the one that everybody uses."""
    gate = session.state.broker.gate
    if not isinstance(gate, SecurityGate):
        yield msgspec.structs.replace(DEFAULT_ACCOUNT, rules=_EVERYTHING)
        return
    now_us = session.state.now_us()
    directory = gate.directory
    if session.state.options.password and "default" not in directory.users:
        yield DEFAULT_ACCOUNT
    for name in sorted({*directory.keys, *directory.users}):
        key = directory.keys.get(name)
        if key is not None:
            found = directory.account_of_key(key, key.digest, now_us)
        else:
            found = directory.account_of_user(directory.users[name], now_us)
        if found is not None:
            yield found


def _maybe_account(session: RedisPeer, word: bytes) -> Account | None:
    name = text_of(word)
    return next((account for account in _accounts(session) if account.name == name), None)


def _shown(session: RedisPeer, account: Account) -> _Shown:
    flags = ("on",)
    if not session.state.broker.gate.guarded:
        flags += (
            ("sanitize-payload",)
            if session.state.options.password
            else (
                "nopass",
                "sanitize-payload",
            )
        )
    if account.rules.role is Role.ADMIN:
        return _Shown(flags, "+@all", "~*", "&*")
    who = Identity(user=account.name, account=account)
    permit = Permit(session.state.broker, who)
    publish = _patterns(account, account.rules.publish, (Role.PRODUCER,))
    follow = _patterns(account, account.rules.subscribe, (Role.CONSUMER, Role.VIEWER))
    commands = ["-@all", *_allowed(session, permit)]
    to_publish, to_follow = map(_named, (_PUBLISHING, _FOLLOWING))
    if publish == follow:
        extra = [to_publish, to_follow] if publish else []
        return _Shown(flags, " ".join([*commands, *extra]), "", _globs(publish))
    selectors = tuple(
        (f"-@all {names}", _globs(patterns))
        for names, patterns in ((to_publish, publish), (to_follow, follow))
        if patterns
    )
    return _Shown(flags, " ".join(commands), "", "", selectors)


def _named(commands: tuple[str, ...]) -> str:
    return " ".join(f"+{name}" for name in commands)


def _patterns(
    account: Account, given: tuple[str, ...] | None, roles: tuple[Role, ...]
) -> tuple[str, ...]:
    if given is not None:
        return tuple(pattern.replace("{user}", account.name) for pattern in given)
    return _ALL if account.rules.role in roles else ()


def _allowed(session: RedisPeer, permit: Permit) -> Iterator[str]:
    """The commands that are not about one channel."""
    for spec in session.commands.values():
        if spec.name in (*_PUBLISHING, *_FOLLOWING):
            continue
        parts = [part for part in spec.subcommands.values() if _may_run(permit, part)]
        if spec.subcommands and len(parts) < len(spec.subcommands):
            yield from (f"+{part.name}" for part in parts)
        elif _may_run(permit, spec):
            yield f"+{spec.name}"


def _may_run(permit: Permit, spec: CommandSpec) -> bool:
    return spec.verb is None or permit.may(spec.verb, "")


def _globs(patterns: tuple[str, ...]) -> str:
    return " ".join("&" + pattern.replace(">", "*") for pattern in patterns)


def _line(session: RedisPeer, account: Account) -> str:
    shown = _shown(session, account)
    selectors = [f"(resetchannels {channels} {names})" for names, channels in shown.selectors]
    channels = shown.channels if shown.channels == "&*" else f"resetchannels {shown.channels}"
    words = (*shown.flags, shown.keys, channels.strip(), shown.commands, *selectors)
    return " ".join(("user", account.name, *filter(None, words)))


def _whoami(session: RedisPeer, words: Command) -> RespReply:
    return session.user.encode()


def _list(session: RedisPeer, words: Command) -> RespReply:
    return [_line(session, account).encode() for account in _accounts(session)]


def _users(session: RedisPeer, words: Command) -> RespReply:
    return [account.name.encode() for account in _accounts(session)]


def _getuser(session: RedisPeer, words: Command) -> RespReply:
    account = _maybe_account(session, words[2])
    if account is None:
        return None
    shown = _shown(session, account)
    return MapReply(
        {
            b"flags": Distinct([flag.encode() for flag in shown.flags]),
            # Not even their hashes are anybody's business.
            b"passwords": [],
            b"commands": shown.commands.encode(),
            b"keys": shown.keys.encode(),
            b"channels": shown.channels.encode(),
            b"selectors": [
                MapReply(
                    {
                        b"commands": names.encode(),
                        b"keys": b"",
                        b"channels": channels.encode(),
                    }
                )
                for names, channels in shown.selectors
            ],
        }
    )


def _cat(session: RedisPeer, words: Command) -> RespReply:
    if len(words) > 3:
        return ErrorReply("ERR wrong number of arguments for 'acl|cat' command")
    specs = [
        part for spec in session.commands.values() for part in (spec, *spec.subcommands.values())
    ]
    if len(words) == 2:
        return [name.encode() for name in sorted({c for spec in specs for c in spec.categories})]
    wanted = text_of(words[2]).lower()
    found = [spec.name.encode() for spec in specs if wanted in spec.categories]
    return found or ErrorReply(f"ERR Unknown category '{text_of(words[2])}'")


def _genpass(session: RedisPeer, words: Command) -> RespReply:
    bits = _PASSWORD_BITS if len(words) == 2 else maybe_number(words[2])
    if len(words) > 3 or bits is None or not 0 < bits <= _PASSWORD_BITS_MAX:
        return ErrorReply(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a "
            "positive number up to 4096"
        )
    digits = -(-bits // 4)
    return secrets.token_hex(digits)[:digits].encode()


def _log(session: RedisPeer, words: Command) -> RespReply:
    """Denials are in the audit log."""
    return OK if len(words) == 3 and words[2].upper() == b"RESET" else []


def _dryrun(session: RedisPeer, words: Command) -> RespReply:
    account = _maybe_account(session, words[2])
    if account is None:
        return ErrorReply(f"ERR User '{text_of(words[2])}' not found")
    wanted = words[3:]
    found = session.find_command(wanted)
    if isinstance(found, ErrorReply):
        name = text_of(wanted[0])
        unknown = found.text.startswith("ERR unknown command")
        return ErrorReply(f"ERR Command '{name}' not found") if unknown else found
    who = Identity(user=account.name, account=account)
    permit = Permit(session.state.broker, who)
    refused = f"User {account.name} has no permissions to "
    if not _may_run(permit, found):
        return f"{refused}run the '{found.name}' command".encode()
    for channel, verb, target in _targets(found, wanted):
        if not _may(permit, verb, target):
            return f"{refused}access the '{text_of(channel)}' channel".encode()
    return OK


def _targets(spec: CommandSpec, words: Command) -> Iterator[tuple[bytes, Verb, str]]:
    shard = spec.name in ("spublish", "ssubscribe")
    if spec.name in _PUBLISHING:
        yield words[1], Verb.PUBLISH, topic_of(words[1], shard=shard)
    elif spec.name in _FOLLOWING:
        for name in words[1:]:
            pattern = spec.name == "psubscribe"
            target = pattern_over(name) if pattern else topic_of(name, shard=shard)
            yield name, Verb.SUBSCRIBE, target


def _may(permit: Permit, verb: Verb, target: str) -> bool:
    try:
        return permit.may(verb, target)
    except FanlogError:
        return False


def _part(
    name: str, arity: int, handler: CommandHandler, summary: str, *, admin: bool = True
) -> CommandSpec:
    return CommandSpec(
        name=f"acl|{name}",
        arity=arity,
        handler=handler,
        flags=(*("admin",) * admin, "noscript", "loading", "stale"),
        categories=("admin", "slow", "dangerous") if admin else ("slow",),
        summary=summary,
        since="7.0.0" if name == "dryrun" else "6.0.0",
        group="server",
        verb=Verb.ADMIN if admin else None,
    )


def _help(session: RedisPeer, words: Command) -> RespReply:
    return help_lines(_HELP)


def _elsewhere(session: RedisPeer, words: Command) -> RespReply:
    return _ELSEWHERE


ACL_PARTS = {
    part.name.partition("|")[2]: part
    for part in (
        _part("cat", -2, _cat, "Lists ACL categories, or the commands in one.", admin=False),
        _part("deluser", -3, _elsewhere, "Deletes ACL users: not here."),
        _part("dryrun", -4, _dryrun, "Simulates the execution of a command by a user."),
        _part("genpass", -2, _genpass, "Generates a secure password.", admin=False),
        _part("getuser", 3, _getuser, "Lists the ACL rules of a user."),
        _part("help", 2, _help, "Returns helpful text.", admin=False),
        _part("list", 2, _list, "Dumps the effective rules in ACL file format."),
        _part("load", 2, _elsewhere, "Reloads the rules from the ACL file: not here."),
        _part("log", -2, _log, "Lists recent security events: none here."),
        _part("save", 2, _elsewhere, "Saves the rules in the ACL file: not here."),
        _part("setuser", -3, _elsewhere, "Changes an ACL user: not here."),
        _part("users", 2, _users, "Lists all ACL users."),
        _part("whoami", 2, _whoami, "Returns the name of the current user.", admin=False),
    )
}
