"""A finding: something in a broker that needs attention; the data that it is found in; and its
texts."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    BAD = "bad"
    WARN = "warn"
    INFO = "info"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`link` is the kind of page where it can be fixed, `about` the name that the page is of."""

    kind: str
    severity: Severity
    text: str
    link: str
    about: str = ""
    # The dead-letter topic of the queue that it is about, and the text for who may not see that.
    target: str = ""
    text_without_target: str = ""
    admin: bool = False


class OpenTransaction(msgspec.Struct, frozen=True):
    """As much of one as is needed here."""

    name: str
    age_seconds: float


class Trouble(msgspec.Struct, frozen=True):
    """A partition that is not well: `kind` is failed, damaged or unreadable."""

    kind: str
    topic: str
    text: str


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are not in a snapshot."""

    in_memory: bool = False
    disk_full: bool = False
    troubles: tuple[Trouble, ...] = ()
    # Sentences about the broker's own files, and about delayed messages and transactions.
    problems: tuple[str, ...] = ()
    certificate: str = ""
    late: tuple[str, ...] = ()
    # Dead letters by topic, most first; None if they were not counted.
    dead_letters: tuple[tuple[str, int], ...] | None = None
    # Where queues put their dead letters.
    dead_letter_topics: dict[str, str] = {}
    # The oldest open ones first.
    transactions: tuple[OpenTransaction, ...] = ()
    # Groups that a program moves without being a member, such as a Spark query: seconds since.
    committers: dict[str, float] = {}
    failed_pipelines: tuple[tuple[str, str], ...] = ()


def duration_text(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def bytes_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def rate_text(per_second: float) -> str:
    if per_second >= 1:
        return f"{per_second:,.0f} per second"
    return f"{per_second * 60:,.0f} per minute" if per_second * 60 >= 1 else "a few per hour"
