"""Every option of `Config` as a table: where it stands in the file, its kind, its range and its
reason, read from the types in `fanlog.config`, so that file, environment, flags, `config init` and
error sentences can't disagree."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from fanlog.cli.quantities import parse_duration, parse_size, write_duration, write_size
from fanlog.config import Config
from fanlog.config_live import live_fields
from fanlog.errors import ConfigError, InvalidArgumentError

OptionValue = str | int | float | bool
ValueKind = Literal["text", "switch", "whole", "decimal", "choice"]
OptionUnit = Literal["", "bytes", "seconds"]

# What is shown instead of a secret, however long that is.
SECRET = "********"
_SECRET_WORDS = ("password", "secret", "private")
_EXAMPLES = {"bytes": ", such as 64KiB or 128MB", "seconds": ", such as 500ms, 30s, 10m or 7d"}
# User and password in an address, such as redis://:password@host.
_USER_INFO = re.compile(r"(\w://)[^/@\s]*@")
# A number past its unit's is a slip, or an attack: no time, file or counter can have it. A duration
# added to the time of day has to stay a time, and a whole number has to fit into JSON.
_NUMBER_MAX: dict[OptionUnit, float] = {"": 2**53, "bytes": 2**53, "seconds": 100_000 * 86_400}
# Characters of an invalid value that an error shows.
_SHOWN_MAX = 200
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `section.name` in the file, `FANLOG_SECTION_NAME` in the environment."""

    section: str
    name: str
    kind: ValueKind
    unit: OptionUnit
    default: OptionValue
    reason: str
    low: float | None
    low_itself: bool
    high: float | None
    choices: tuple[str, ...]
    # Whether it can be changed while the broker runs.
    live: bool = False

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def secret(self) -> bool:
        """Whether its value must not be shown."""
        return any(word in self.name for word in _SECRET_WORDS) and not self.name.endswith("_file")

    def show(self, value: OptionValue) -> OptionValue:
        """The value, for a screen: a secret shows only that there is one, also in an address."""
        if isinstance(value, str):
            value = _USER_INFO.sub(rf"\1{SECRET}@", value)
        return SECRET if self.secret and value else value

    @property
    def variable(self) -> str:
        return "FANLOG_" + self.path.replace(".", "_").upper()

    def write(self, value: OptionValue) -> str:
        """A value as one may write it: `128MiB`, `7d`."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str) or not self.unit:
            return str(value)
        return write_size(int(value)) if self.unit == "bytes" else write_duration(value)

    def write_toml(self, value: OptionValue) -> str:
        text = self.write(value)
        quoted = isinstance(value, str) or not text.replace(".", "", 1).isdigit()
        return f'"{text}"' if quoted and not isinstance(value, bool) else text

    @property
    def allowed(self) -> str:
        """The allowed values: `64KiB to 1GiB`, `memory, os or fsync`."""
        if self.kind == "choice":
            named = [choice or "empty" for choice in self.choices]
            return f"{', '.join(named[:-1])} or {named[-1]}"
        if self.kind == "switch":
            return "true or false"
        if self.kind == "text":
            return "a text"
        noun = {"bytes": "a size", "seconds": "a duration"}.get(self.unit, "a number")
        example = _EXAMPLES.get(self.unit, "")
        if self.low is not None and self.high is not None:
            return f"{noun} from {self._bound(self.low)} to {self._bound(self.high)}{example}"
        if self.low is not None and not self.low_itself:
            return f"{noun} above {self._bound(self.low)}{example}"
        return f"{noun} of {self._bound(self.low or 0)} or more{example}"

    def _too_large(self, shown_as: str) -> ConfigError:
        most = self._bound(_NUMBER_MAX[self.unit])
        return ConfigError(f"{shown_as or self.path} is too large: it must be {most} or less.")

    def _bound(self, bound: float) -> str:
        return self.write(int(bound) if bound == int(bound) else bound)

    def read(self, given: Any, shown_as: str = "") -> OptionValue:
        """A value from a file, a variable or a flag; a ConfigError says what is allowed."""
        try:
            value = self._read(given)
        except OverflowError:
            raise self._too_large(shown_as) from None
        except ValueError:
            raise self._refused(given, shown_as) from None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return value
        too_low = self.low is not None and (
            value < self.low or (value == self.low and not self.low_itself)
        )
        # Written so that a NaN is refused as well.
        if too_low or not value <= (float("inf") if self.high is None else self.high):
            raise self._refused(given, shown_as)
        if value > _NUMBER_MAX[self.unit]:
            raise self._too_large(shown_as)
        return value

    def read_flag(self, given: Any, flag: str) -> OptionValue:
        """A value from a flag: a fault in it is one of usage."""
        try:
            return self.read(given, flag)
        except ConfigError as fault:
            raise InvalidArgumentError(str(fault)) from fault

    def _refused(self, given: Any, shown_as: str) -> ConfigError:
        # In a file a text differs from a number, and looks so; a flag or variable is always text.
        given = self.show(given)
        if isinstance(given, str) and len(given) > _SHOWN_MAX:
            given = given[:_SHOWN_MAX] + "…"
        shown = f'"{given}"' if isinstance(given, str) and not shown_as else _as_toml(given)
        return ConfigError(f"{shown_as or self.path} is {shown}, but must be {self.allowed}.")

    def _read(self, given: Any) -> OptionValue:
        if self.kind == "switch":
            return _switch(given)
        if self.kind in ("text", "choice"):
            if not isinstance(given, str) or (self.choices and given not in self.choices):
                raise ValueError
            return given
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            raise ValueError
        number = self._number(given) if isinstance(given, str) else given
        if self.kind == "decimal":
            return float(number)
        if number != number // 1:
            raise ValueError
        return int(number)

    def _number(self, given: str) -> float:
        if self.unit == "bytes":
            return parse_size(given)
        if self.unit == "seconds":
            return parse_duration(given)
        return int(given) if self.kind == "whole" else float(given)


def _switch(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given.lower() in _TRUE + _FALSE:
        return given.lower() in _TRUE
    raise ValueError


def _as_toml(given: Any) -> str:
    return str(given).lower() if isinstance(given, bool) else str(given)


@cache
def all_options() -> dict[str, Option]:
    """Every option by its path, in the order of the file."""
    return {option.path: option for option in options_of(Config, "")}


def options_of(struct: type[msgspec.Struct], section: str) -> list[Option]:
    """The options of a struct, and of the structs in it. `section` is its section of the file."""
    found: list[Option] = []
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if isinstance(field.type, inspect.StructType):
            found += options_of(field.type.cls, field.name)
        elif not isinstance(field.type, inspect.DictType):  # tables of keys and users
            live = field.name in live_fields(struct)
            found.append(_option(section, field, _choices(struct, field.name), live=live))
    return found


@cache
def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    "Every command needs this, and it takes a while."
    return get_type_hints(struct)


def _choices(struct: type[msgspec.Struct], name: str) -> tuple[str, ...]:
    """What a `Literal` allows, in the order of its declaration, which `inspect` does not keep."""
    kind = _hints(struct)[name]
    return tuple(str(choice) for choice in get_args(kind)) if get_origin(kind) is Literal else ()


def _option(section: str, field: inspect.Field, choices: tuple[str, ...], *, live: bool) -> Option:
    kind, reason = field.type, ""
    if isinstance(kind, inspect.Metadata):
        described = cast(dict[str, Any], kind.extra_json_schema or {})  # pyright: ignore[reportUnknownMemberType]
        reason = str(described.get("description", ""))
        kind = kind.type
    low = high = None
    low_itself = True
    if isinstance(kind, (inspect.IntType, inspect.FloatType)):
        low_itself = kind.gt is None
        low = kind.ge if low_itself else kind.gt
        high = kind.le
    return Option(
        section=section,
        name=field.name,
        kind=_KINDS[type(kind)],
        unit="bytes" if "bytes" in field.name else "seconds" if "seconds" in field.name else "",
        default=cast(OptionValue, field.default),
        reason=reason,
        low=low,
        low_itself=low_itself,
        high=high,
        choices=choices,
        live=live,
    )


_KINDS: dict[type[inspect.Type], ValueKind] = {
    inspect.StrType: "text",
    inspect.BoolType: "switch",
    inspect.IntType: "whole",
    inspect.FloatType: "decimal",
    inspect.LiteralType: "choice",
    # A client's token: a text, or in Python a function.
    inspect.AnyType: "text",
}


def maybe_near(wrong: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if one is close."""
    near = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.7)
    return near[0] if near else None


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of a sentence: `; did you mean 'port'?` if a known name is close."""
    near = maybe_near(wrong, known)
    return "." if near is None else f"; did you mean {near!r}?"
