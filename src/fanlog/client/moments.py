"""Durations and moments as people write them: `10m`, `1.5h`, `2025-01-31T12:00`. The command line
and Python read them alike."""

from __future__ import annotations

import datetime as dt
import re

TIME_UNITS = {
    "ms": 0.001,
    "": 1.0,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 7 * 86400.0,
}
QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)")


def parse_duration(text: str) -> float:
    """Seconds of `7d`, `1.5h`, `500ms` or `30`; a ValueError says how to write it."""
    match = QUANTITY.fullmatch(text.strip())
    factor = TIME_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a duration: write it as 30, 500ms, 10m, 2h or 7d")
    return float(match[1]) * factor


def parse_moment(text: str, now: dt.datetime) -> dt.datetime:
    """A moment in ISO 8601 (local time where it names no zone), or an age such as `10m`."""
    if QUANTITY.fullmatch(text.strip()):
        try:
            return now - dt.timedelta(seconds=parse_duration(text))
        except (ValueError, OverflowError):
            pass
    try:
        return dt.datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a moment: write it as 2025-01-31T12:00, or as an age such as 10m or "
            "2h"
        ) from None
