"""Figures as people read them, and the tables that hold them: what all reports share.

Law: nothing here knows a report.
"""

from __future__ import annotations

from rich.table import Table


def count(value: float) -> str:
    """A rate for people: 812, 97.1 k, 4.85 M."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 1e3:
        return f"{value / 1e3:.1f} k"
    return f"{value:.0f}"


def size(value: float) -> str:
    """Bytes for people: 812 B, 97.1 KiB, 4.50 GiB."""
    for power, letter in ((3, "G"), (2, "M"), (1, "K")):
        if value >= 1024**power:
            return f"{value / 1024**power:.{1 if power < 3 else 2}f} {letter}iB"
    return f"{value:.0f} B"


def times(value: float, base: float | None) -> str:
    """The value as a multiple of `base`, or a dash without a base."""
    return f"{value / base:.2f}×" if base else "–"


def system_label(system: str, batch: int, listener: str = "native") -> str:
    """The system; for Fanlog also the batch size, or the protocol."""
    if system != "fanlog":
        return system
    if listener in ("websocket", "sse"):
        return f"{system} {listener}, {batch} a batch"
    return f"{system}, {batch} a batch" if listener == "native" else f"{system}, {listener} port"


def new_table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are figures."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table
