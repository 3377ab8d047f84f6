"""Settings from where they are given: defaults, then the file, then the environment, then flags.

Law: the later one wins, and every value remembers where it came from.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from fanlog.cli.file_faults import reason
from fanlog.cli.options import Option, OptionValue, all_options, did_you_mean, maybe_near
from fanlog.client.credentials import VARIABLES as CREDENTIAL_VARIABLES
from fanlog.client.tls import TLS_VARIABLES
from fanlog.config import Config
from fanlog.config_security import KeyTable, UserTable
from fanlog.errors import ConfigError

DEFAULT_FILE = Path("fanlog.toml")
PREFIX = "FANLOG_"
# Variables that are read elsewhere: by client commands, or by the command line itself.
# What Kubernetes and Docker say of a service, as in FANLOG_PORT=tcp://10.0.0.1:7420.
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_SERVICE = re.compile(r"\w+(_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_\d+_(TCP|UDP|SCTP)_\w+)")
OTHER_VARIABLES = (
    "FANLOG_URL",
    "FANLOG_CONFIG",
    "FANLOG_DEBUG",
    # A program that runs Spark has set it for Spark's workers.
    "FANLOG_WORKER_PYTHON",
    *CREDENTIAL_VARIABLES,
    *TLS_VARIABLES,
)

TABLES: dict[str, type[msgspec.Struct]] = {"keys": KeyTable, "users": UserTable}

SettingSource = Literal["default", "file", "environment", "flag", "temporary"]


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value and where it came from; `where` is the file, the variable or the flag."""

    option: Option
    value: OptionValue
    source: SettingSource = "default"
    where: str = ""


@dataclass(slots=True)
class Settings:
    """The effective value of every option, by path."""

    by_path: dict[str, Setting]
    # Keys and users of the file.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    file: Path | None = None
    remarks: list[str] = field(default_factory=list[str])

    @property
    def config(self) -> Config:
        document: dict[str, Any] = {**self.tables}
        for setting in self.by_path.values():
            section = setting.option.section
            table = document.setdefault(section, {}) if section else document
            table[setting.option.name] = setting.value
        return msgspec.convert(document, Config)


def load_settings(
    file: Path | None,
    flags: Mapping[str, OptionValue | None],
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """All settings. `flags` maps an option's path to what was given, None where nothing was."""
    known = all_options()
    settings = Settings({path: Setting(option, option.default) for path, option in known.items()})
    chosen = file or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    if chosen is not None:
        settings.file = chosen
        document = read_document(chosen)
        for setting in _from_document(document, chosen):
            settings.by_path[setting.option.path] = setting
        settings.tables = {name: document[name] for name in TABLES if name in document}
    variables = os.environ if environment is None else environment
    for setting in _from_environment(variables):
        settings.by_path[setting.option.path] = setting
    settings.remarks = unknown_variables(variables)
    for path, given in flags.items():
        if given is not None:
            flag = _flag_of(known[path])
            value = known[path].read_flag(given, flag)
            settings.by_path[path] = Setting(known[path], value, "flag", flag)
    _find_files(settings, variables)
    _read_password(settings)
    return settings


def _find_files(settings: Settings, environment: Mapping[str, str]) -> None:
    """systemd hands secrets over in a folder of its own (LoadCredential=): a file that is given as
    a plain name, and is there, is that one."""
    folder = environment.get("CREDENTIALS_DIRECTORY", "")
    if not folder:
        return
    for path, setting in settings.by_path.items():
        found = _credential(folder, setting.value) if path.endswith("_file") else None
        if found is not None:
            settings.by_path[path] = replace(setting, value=found)
    settings.tables = {
        kind: {name: _with_credentials(folder, table) for name, table in tables.items()}
        for kind, tables in settings.tables.items()
    }


def _with_credentials(folder: str, table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    entries = cast("dict[str, Any]", table).items()
    return {
        name: (_credential(folder, value) or value) if name.endswith("_file") else value
        for name, value in entries
    }


def _credential(folder: str, name: object) -> str | None:
    if not isinstance(name, str) or not name or "/" in name:
        return None
    found = Path(folder) / name
    return str(found) if found.is_file() else None


def _read_password(settings: Settings) -> None:
    """The Redis password, where it is in a file of its own."""
    path, password = settings.by_path["redis.password_file"], settings.by_path["redis.password"]
    if not path.value:
        return
    if password.value:
        raise ConfigError("redis.password and redis.password_file exclude each other: give one.")
    # It takes a while to import, and few need it.
    from fanlog.security.bootstrap import read_secret_file  # noqa: PLC0415

    secret = read_secret_file(str(path.value), "redis.password_file")
    settings.by_path["redis.password"] = Setting(
        password.option, secret, path.source, f"the file {path.value}"
    )


def _flag_of(option: Option) -> str:
    """The flag of `fanlog serve` that sets an option."""
    prefix = {"redis": "--redis-", "web": "--http-"}.get(option.section, "--")
    return prefix + option.name.replace("_", "-")


def _from_document(document: dict[str, Any], file: Path) -> Iterator[Setting]:
    for given in check_document(document):
        if isinstance(given, ConfigError):
            raise ConfigError(f"{file}: {given}")
        yield Setting(given.option, given.value, "file", str(file))


def read_document(file: Path) -> dict[str, Any]:
    """What a TOML file says; a ConfigError where it can't be read or is no TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"There is no file {file}. Check the path, or make a new one with: fanlog config init "
            f"{shlex.quote(str(file))}"
        ) from None
    except OSError as fault:
        raise ConfigError(f"{file} can't be read: {reason(fault)}") from fault
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{file} is not valid TOML: {fault}.") from fault


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option that a document sets, with its checked value."""

    option: Option
    value: OptionValue


def check_document(document: dict[str, Any]) -> Iterator[GivenOption | ConfigError]:
    """Everything that a document sets, and every fault in it, in its order."""
    sections = {option.section for option in all_options().values()} - {""}
    for name, content in document.items():
        if name in TABLES:
            yield from check_tables(name, content)
        elif name not in sections:
            yield _checked("", name, content)
        elif isinstance(content, dict):
            for key, value in cast(dict[str, Any], content).items():
                yield _checked(name, key, value)
        else:
            yield ConfigError(f"{name} is a section: write [{name}], and its options below it.")


def check_tables(name: str, content: Any) -> Iterator[ConfigError]:
    """Every fault in the tables of keys or users. A value is not shown: it may be a secret."""
    kind = TABLES[name]
    if not isinstance(content, dict):
        yield ConfigError(f"{name} is a section: write [{name}.NAME] for each.")
        return
    for one, table in cast(dict[str, Any], content).items():
        try:
            msgspec.convert(table, kind)
        except msgspec.ValidationError as fault:
            said = str(fault).split(" - at ")[0]
            at = str(fault).partition("$.")[2].rstrip("`")
            path = f"{name}.{one}" + (f".{at}" if at else "")
            yield ConfigError(f"{path}: {said}. See docs/security.md for the allowed fields.")


def _checked(section: str, name: str, given: Any) -> GivenOption | ConfigError:
    path = f"{section}.{name}" if section else name
    known = all_options()
    option = known.get(path)
    if option is None:
        return ConfigError(_unknown(section, name, path))
    try:
        return GivenOption(option, option.read(given))
    except ConfigError as fault:
        return fault


def _unknown(section: str, name: str, path: str) -> str:
    options = all_options().values()
    if not section:
        names = {option.section or option.name for option in options}
        elsewhere = [option.path for option in options if option.name == name]
        if elsewhere:
            return f"There is no option {path!r} outside a section; did you mean {elsewhere[0]!r}?"
        return f"There is no option or section {path!r}{did_you_mean(name, names)}"
    near = did_you_mean(name, [option.name for option in options if option.section == section])
    return f"There is no option {name!r} in [{section}]{near}"


def _from_environment(variables: Mapping[str, str]) -> Iterator[Setting]:
    for option in all_options().values():
        given = variables.get(option.variable)
        if given is not None:
            value = option.read(given, option.variable)
            yield Setting(option, value, "environment", option.variable)


def unknown_variables(variables: Mapping[str, str]) -> list[str]:
    """A remark for each FANLOG_* variable that sets nothing, unless a container platform put it
    there for a service that is called fanlog."""
    known = [option.variable for option in all_options().values()]
    remarks: list[str] = []
    for name, value in sorted(variables.items()):
        if (
            not name.startswith(PREFIX)
            or name in known
            or name in OTHER_VARIABLES
            or _ADDRESS.match(value)
            or _SERVICE.fullmatch(name)
        ):
            continue
        # Without the prefix, which makes any two of them look alike.
        rest = name.removeprefix(PREFIX)
        near = maybe_near(rest, [other.removeprefix(PREFIX) for other in known])
        hint = "See them with: fanlog config show" if near is None else f"Try {PREFIX}{near}."
        remarks.append(f"The variable {name} is ignored: there is no such option. {hint}")
    return remarks
