"""The progress bar of long inputs; imported only where a person will see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fanlog.cli.terminal import err


@contextlib.contextmanager
def input_progress(title: str, total: int | None) -> Generator[Callable[[int], None]]:
    """A progress bar. It disappears at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err(), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def advance(done: int) -> None:
            bar.update(task, completed=done)

        yield advance
