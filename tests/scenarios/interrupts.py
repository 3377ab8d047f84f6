"""Ctrl-C for programs that tests start. Where the tests themselves run in the background of a shell
they ignore SIGINT, and so would whatever they start."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def heard_interrupts() -> Generator[None]:
    """What is started in this block hears SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
