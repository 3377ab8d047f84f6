"""The valid values of options: a mistake is an error before Spark starts.

| kind       | a value of it                                             |
| ---------- | --------------------------------------------------------- |
| `text`     | anything                                                  |
| `number`   | `1000`: whole, 0 or more                                  |
| `count`    | `50`: whole, 1 or more                                    |
| `rate`     | `0.5`: 0 or more                                          |
| `interval` | `90 seconds`, `1 hour 30 minutes`                         |
| `pause`    | an interval, or `now`                                     |
| `time`     | `2026-01-31T12:00:00Z`; without a zone it is UTC          |
| `flag`     | `yes` or `no`                                             |
| `truth`    | `true` or `false`, as an option of Spark's own            |
| `folder`   | a path; the same one however it is written                |
| `topic`    | a topic that is there                                     |
| `topics`   | some, with commas between, or a pattern such as `orders.>` |

Only a broker knows which topics exist: `wanted_topics` names those to ask for.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

from fanlog.errors import InvalidArgumentError
from fanlog.format.patterns import is_pattern

OptionKind = Literal[
    "text",
    "number",
    "count",
    "rate",
    "interval",
    "pause",
    "time",
    "flag",
    "truth",
    "folder",
    "topic",
    "topics",
]

_UNIT = r"(microsecond|millisecond|second|minute|hour|day|week)s?"
_INTERVAL = re.compile(rf"\d+ +{_UNIT}( +\d+ +{_UNIT})*", re.IGNORECASE)


class Described(Protocol):
    """The needed part of an option."""

    @property
    def kind(self) -> OptionKind: ...
    @property
    def default(self) -> str: ...


def check_value(name: str, option: Described, value: str) -> None:
    """Checks that the value is of the option's kind. An option without a default may have no
    value."""
    if not value and not option.default:
        return
    fits, wanted = _RULES[option.kind]
    if not fits(value):
        raise InvalidArgumentError(f"The option {name!r} is {value!r}: give {wanted}.")


def wanted_topics(options: Mapping[str, Described], values: Mapping[str, str]) -> list[str]:
    """The topics that a pipeline reads by name. A pattern may match some later."""
    return [
        topic
        for name, option in options.items()
        if option.kind in ("topic", "topics")
        for topic in split_names(values[name])
        if not is_pattern(topic)
    ]


def continues(kind: OptionKind, before: str, value: str) -> bool:
    """Whether a run with this value may resume a run with the old value."""
    if kind == "topics" and not is_pattern(before):
        # Topics may be added: they are read from their start.
        return set(split_names(before)) <= set(split_names(value))
    return before == value


def kept_value(kind: OptionKind, value: str) -> str:
    """A value to store: a folder becomes absolute."""
    return str(Path(value).resolve()) if kind == "folder" else value


def split_names(value: str) -> list[str]:
    return [name for part in value.split(",") if (name := part.strip())]


def time_of(value: str) -> dt.datetime:
    """A time in ISO 8601; UTC without a zone."""
    time = dt.datetime.fromisoformat(value)
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _is_count(value: str) -> bool:
    return _is_number(value) and int(value) > 0


def _is_rate(value: str) -> bool:
    try:
        rate = float(value)
    except ValueError:
        return False
    return math.isfinite(rate) and rate >= 0


def _is_interval(value: str) -> bool:
    return _INTERVAL.fullmatch(value.strip()) is not None


def _is_pause(value: str) -> bool:
    return value == "now" or _is_interval(value)


def _is_time(value: str) -> bool:
    try:
        time_of(value)
    except ValueError:
        return False
    return True


def _is_flag(value: str) -> bool:
    return value in ("yes", "no")


def _is_truth(value: str) -> bool:
    return value in ("true", "false")


def _is_topic(value: str) -> bool:
    return bool(value) and not is_pattern(value)


def _is_topics(value: str) -> bool:
    """Names, or one pattern: the source takes either."""
    names = split_names(value)
    return bool(names) and (len(names) == 1 or not any(map(is_pattern, names)))


_RULES: Mapping[OptionKind, tuple[Callable[[str], bool], str]] = {
    "text": (lambda _: True, "a text"),
    "number": (_is_number, "a whole number of 0 or more"),
    "count": (_is_count, "a whole number of 1 or more"),
    "rate": (_is_rate, "a number of 0 or more"),
    "interval": (_is_interval, "an interval such as '10 seconds' or '1 hour 30 minutes'"),
    "pause": (_is_pause, "now, or an interval such as '10 seconds'"),
    "time": (_is_time, "a time such as 2026-01-31T12:00:00Z"),
    "flag": (_is_flag, "yes or no"),
    "truth": (_is_truth, "true or false"),
    "folder": (bool, "a folder"),
    "topic": (_is_topic, "the name of one topic"),
    "topics": (_is_topics, "names, separated by commas, or one pattern such as orders.>"),
}
