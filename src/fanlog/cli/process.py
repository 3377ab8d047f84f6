"""A process that serves clients until a signal: its limits, its garbage collector and its signals.
The first signal drains, the second ends at once. SIGHUP reads the settings again."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.hangup import Terminal
from fanlog.cli.live import ServedSettings
from fanlog.cli.loops import new_event_loop
from fanlog.cli.service_manager import ServiceManager
from fanlog.errors import FanlogError
from fanlog.identity import Identity
from fanlog.log import posix

logger = logging.getLogger("fanlog")

_STOPS = (signal.SIGTERM, signal.SIGINT)
# Who starts and stops a broker, in the audit log.
THIS_PROCESS = Identity(listener="process")
# A collection of the youngest generation visits 10,000 objects, and one of the next 100,000: that
# takes 1 and 10 ms, in which nobody is served. A full collection hardly ever comes.
_GC_THRESHOLDS = (10_000, 10, 50_000)
# How long a thread that computes, such as a compaction, may hold up the loop. Python's own default
# is 5 ms, and the loop waits that long again and again.
_SWITCH_SECONDS = 0.0005


def prepare_process() -> None:
    """Sets the limits of a process that serves many connections."""
    posix.require()
    posix.raise_open_files_max()
    sys.setswitchinterval(_SWITCH_SECONDS)


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)


def calm_garbage_collector() -> None:
    """The objects of the start live as long as the broker: each full collection would visit all of
    them, while every reader waits. A broker's garbage is freed by reference counts, so rare
    collections are enough for the few cycles that errors leave behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def reload(live: ServedSettings, manager: ServiceManager, status: str) -> None:
    """Reads the settings again, and logs the result."""
    manager.reloading()
    try:
        changed = (await live.reload(THIS_PROCESS)).changed
        logger.info("SIGHUP: the settings were read again; %d have changed.", len(changed))
    except FanlogError as fault:
        logger.error("SIGHUP: nothing has changed: %s", fault)
    except Exception:
        logger.exception("SIGHUP: reading the settings again failed")
    manager.ready(status)


def on_signals(
    reloading: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> asyncio.Future[int]:
    """A future that is done with the first signal; the next one ends the process. A signal that
    comes together with the first does not count. Nor does SIGHUP, unless the terminal is gone."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()
    terminal = Terminal()
    reloads: set[asyncio.Task[None]] = set()

    def arrived(number: int) -> None:
        if first.done():
            return
        # A handler of the interpreter, not of the loop: it also works when the loop is busy.
        for other in (*_STOPS, signal.SIGHUP):
            loop.remove_signal_handler(other)
            signal.signal(other, _end_at_once)
        first.set_result(number)

    def hung_up() -> None:
        if terminal.is_gone() or first.done():
            arrived(signal.SIGHUP)
        elif reloading is not None:
            task = loop.create_task(reloading())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    for number in _STOPS:
        loop.add_signal_handler(number, arrived, number)
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    return first


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"A second signal: ending at once, without waiting for anything.\n")
    sys.stderr.flush()
    os._exit(ExitCode.FAILED)
