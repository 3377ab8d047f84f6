"""How callers write where to begin, what to follow, when it happened, and a topic's settings; and
what they are told where it has the wrong type."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, TypeVar, get_args

import msgspec

from fanlog.errors import InvalidArgumentError, wrong_value
from fanlog.model import ResetPolicy, Start, TopicSettings

Request = TypeVar("Request", bound=msgspec.Struct)
StartLike = Start | str | int | dt.datetime | None
ExistOk = bool | Literal["any"]


def as_start(given: StartLike) -> Start:
    """A start from "latest", "earliest", an offset, a datetime, or a `Start`."""
    if given is None:
        return Start()
    if isinstance(given, Start):
        return given
    if isinstance(given, dt.datetime):
        return Start("time", round(given.timestamp() * 1_000_000))
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given < 1 << 63:
            raise InvalidArgumentError(f"An offset is 0 or more and below 2^63, not {given}.")
        return Start("offset", given)
    if given == "latest":
        return Start("latest")
    if given == "earliest":
        return Start("earliest")
    raise InvalidArgumentError(
        f"{given!r} is no start: use 'earliest', 'latest', an offset or a datetime."
    )


def topic_name(given: object) -> str:
    """A topic's name or pattern, of the right type; what it may hold the broker knows."""
    if not isinstance(given, str):
        raise InvalidArgumentError(f"A topic's name is a str, not {type(given).__name__}.")
    return given


def checked(request: Request) -> Request:
    """A request whose values have the types that they must have. The broker could not read another,
    and would cut off whoever sends it."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=type(request))
    except (msgspec.ValidationError, TypeError, OverflowError) as fault:
        raise InvalidArgumentError(f"An argument is wrong: {wrong_value(str(fault))}.") from fault
    return request


def reset_policy(given: object) -> None:
    """Refuses what is no reset policy."""
    if given not in get_args(ResetPolicy):
        raise InvalidArgumentError(
            f"There is no reset policy {given!r}: use one of {', '.join(get_args(ResetPolicy))}."
        )


def topic_settings(settings: TopicSettings | None, given: dict[str, Any]) -> dict[str, int | str]:
    """The settings as they go to the broker, which knows the defaults and what is allowed."""
    for name, value in given.items():
        if not isinstance(value, int | str):
            raise InvalidArgumentError(
                f"The topic setting {name!r} can't be {value!r}: give a number or a text."
            )
    return given if settings is None else msgspec.structs.asdict(settings) | given


def to_compare(
    settings: TopicSettings | None, given: dict[str, Any], exist_ok: object
) -> tuple[str, ...] | None:
    """The settings that a topic must have if it exists. In a `TopicSettings` those with another
    value than the default: of the others nobody can tell whether the caller chose them."""
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


def event_time_us(given: dt.datetime | int | None) -> int | None:
    """Microseconds since 1970; None is the time of the append."""
    if isinstance(given, dt.datetime):
        given = round(given.timestamp() * 1_000_000)
    if given is not None and (
        not isinstance(given, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        or not -(1 << 63) <= given < 1 << 63
    ):
        raise InvalidArgumentError(
            f"{given!r} is no event time: give a datetime, or microseconds since 1970."
        )
    return given
