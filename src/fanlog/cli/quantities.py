"""Sizes, durations and moments as people write them: `128MB`, `64KiB`, `7d`, `10m` ago.

Law: KB, MB, GB are powers of 1000, and KiB, MiB, GiB are powers of 1024. Every shown value is valid
input.
"""

from __future__ import annotations

from fanlog.client.moments import QUANTITY, TIME_UNITS, parse_duration, parse_moment

__all__ = [
    "parse_duration",
    "parse_moment",
    "parse_size",
    "show_size",
    "write_duration",
    "write_size",
]

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}


def parse_size(text: str) -> int:
    """Bytes of `128MB`, `64KiB` or `4096`; a ValueError says how to write it."""
    match = QUANTITY.fullmatch(text.strip())
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size: write it as 4096, 64KiB or 128MB")
    size = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def show_size(size: int) -> str:
    """`1.5 MiB`: for people, rounded."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def write_size(size: int) -> str:
    """`128MiB`: exact, so that it is valid input."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _SIZE_UNITS[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def write_duration(seconds: float) -> str:
    """`7d`: exact, so that it is valid input."""
    for unit in ("d", "h", "m"):
        factor = TIME_UNITS[unit]
        if seconds and seconds % factor == 0:
            return f"{int(seconds // factor)}{unit}"
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{seconds}s"
