"""Checks and converts arguments of callers: where to begin, what to follow, times, and a topic's
settings. An argument of the wrong type gets a clear error."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, TypeVar, get_args

import msgspec

from fanlog.client.moments import parse_moment
from fanlog.errors import InvalidArgumentError, wrong_value
from fanlog.format.header import PRIORITY_MAX
from fanlog.model import ResetPolicy, Start, TopicSettings

Request = TypeVar("Request", bound=msgspec.Struct)
StartLike = Start | str | int | dt.datetime | dt.timedelta | None
ExistOk = bool | Literal["any"]


def as_start(given: StartLike, what: str = "start", now: dt.datetime | None = None) -> Start:
    """Where to begin, from every form that callers may give.

    | given | begins |
    | --- | --- |
    | `"latest"`, `"earliest"`, None | at the end, at the first message, as `"latest"` |
    | `42`, `"42"` | at an offset |
    | `"10m"`, `timedelta(minutes=10)` | so long ago |
    | `datetime`, `"2025-01-31T12:00"` | at a time; without a zone it is local time |
    """
    if given is None:
        return Start()
    if isinstance(given, Start):
        return given
    try:
        if isinstance(given, str):
            return _parsed(given.strip(), now)
        if isinstance(given, dt.datetime):
            return _at(given)
        if isinstance(given, dt.timedelta) and given >= dt.timedelta():
            return _at(_now(now) - given)
    except (ValueError, OverflowError, OSError):
        pass
    else:
        if type(given) is int:
            return _at_offset(given)
    others = "" if isinstance(given, str) else " A datetime and a timedelta work too."
    raise InvalidArgumentError(
        f"{what} is {given!r}, but must be earliest, latest, an offset such as 42, a time such as "
        f"2025-01-31T12:00, or an age such as 10m or 2h.{others}"
    )


def _parsed(text: str, now: dt.datetime | None) -> Start:
    if text in ("earliest", "latest"):
        return Start("earliest" if text == "earliest" else "latest")
    if text.isascii() and text.isdecimal():
        return _at_offset(int(text))
    if not text.strip("0123456789_."):
        # `0.5` is not an offset, and an age has a unit.
        raise ValueError(text)
    return _at(parse_moment(text, _now(now)))


def _now(given: dt.datetime | None) -> dt.datetime:
    return given or dt.datetime.now().astimezone()


def _at(moment: dt.datetime) -> Start:
    return Start("time", round(moment.timestamp() * 1_000_000))


def _at_offset(offset: int) -> Start:
    if not 0 <= offset < 1 << 63:
        raise InvalidArgumentError(f"An offset is 0 or more and below 2^63, not {offset}.")
    return Start("offset", offset)


def checked_priority(given: object) -> int:
    """How urgent a message is to a queue: 0 to 9."""
    if type(given) is not int or not 0 <= given <= PRIORITY_MAX:
        raise InvalidArgumentError(
            f"A priority is a number from 0 to {PRIORITY_MAX}, the most urgent, not {given!r}."
        )
    return given


def topic_name(given: object) -> str:
    """A topic's name or pattern, of the right type. The broker checks its contents."""
    if not isinstance(given, str):
        raise InvalidArgumentError(f"A topic's name is a str, not {type(given).__name__}.")
    return given


def checked(request: Request) -> Request:
    """A request whose values have the right types. The broker can't read other types, and would
    disconnect the client."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=type(request))
    except (msgspec.ValidationError, TypeError, OverflowError) as fault:
        raise InvalidArgumentError(f"An argument is wrong: {wrong_value(str(fault))}.") from fault
    return request


def as_reset(given: ResetPolicy | StartLike) -> tuple[ResetPolicy, Start | None]:
    """Where a new group begins: a policy, or a time with its fallback policy."""
    match given:
        case "earliest" | "latest" | "none":
            return given, None
        case _:
            pass
    try:
        start = as_start(given)
    except InvalidArgumentError:
        start = None
    if start is None or start.kind != "time":
        raise InvalidArgumentError(
            f"There is no reset policy {given!r}: use one of {', '.join(get_args(ResetPolicy))}, "
            "a time such as 2025-01-31T12:00 or a datetime, or an age such as 10m or a timedelta."
        )
    return "earliest", start


def reset_policy(given: object) -> None:
    """Refuses an unknown reset policy."""
    if given not in get_args(ResetPolicy):
        raise InvalidArgumentError(
            f"There is no reset policy {given!r}: use one of {', '.join(get_args(ResetPolicy))}."
        )


def topic_settings(settings: TopicSettings | None, given: dict[str, Any]) -> dict[str, int | str]:
    """The settings for the broker, which knows the defaults and the allowed values."""
    for name, value in given.items():
        if not isinstance(value, int | str):
            raise InvalidArgumentError(
                f"The topic setting {name!r} can't be {value!r}: give a number or a text."
            )
    return given if settings is None else msgspec.structs.asdict(settings) | given


def to_compare(
    settings: TopicSettings | None, given: dict[str, Any], exist_ok: object
) -> tuple[str, ...] | None:
    """The settings that a topic must have if it exists. Of a `TopicSettings`, only values other
    than the defaults: the caller may not have chosen a default."""
    if exist_ok not in (True, False, "any"):
        raise InvalidArgumentError(
            f"exist_ok is {exist_ok!r}, but must be True, False or 'any': whatever its settings."
        )
    if exist_ok == "any":
        return ()
    if settings is None:
        return None
    default = TopicSettings()
    names = settings.__struct_fields__
    chosen = [name for name in names if getattr(settings, name) != getattr(default, name)]
    return (*chosen, *given)


def seconds_of(moment: dt.datetime) -> float:
    """Seconds since 1970. Near the years 1 and 9999 local times have none."""
    try:
        return moment.timestamp()
    except (ValueError, OverflowError, OSError) as fault:
        raise InvalidArgumentError(f"{moment} is a time that this machine can't hold.") from fault


def event_time_us(given: dt.datetime | int | None) -> int | None:
    """Microseconds since 1970; None is the time of the append."""
    if isinstance(given, dt.datetime):
        given = round(seconds_of(given) * 1_000_000)
    if given is not None and (
        not isinstance(given, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        or not -(1 << 63) <= given < 1 << 63
    ):
        raise InvalidArgumentError(
            f"{given!r} is no event time: give a datetime, or microseconds since 1970."
        )
    return given
