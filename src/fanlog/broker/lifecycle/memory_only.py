"""A broker without a data folder, for code that is written for one with a folder: topics that ask
to be kept on disk live in memory. The client warns a program that asked for more."""

from __future__ import annotations

_ON_DISK = ("os", "fsync")


def in_memory(given: dict[str, int | str]) -> dict[str, int | str]:
    """Settings of a topic, as far as a broker without a folder can keep them."""
    if given.get("durability") in _ON_DISK:
        return {**given, "durability": "memory"}
    return given
