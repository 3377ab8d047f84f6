"""Keeps the history of metrics of one process: takes a snapshot every 5 seconds, puts it into the
rings, and has a thread write the new rows to disk.

Law: it costs the event loop well under a millisecond a sample, and a disk that is slow, full or
gone costs a bounded list of rows and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

from fanlog.config_security import TelemetryOptions
from fanlog.telemetry.history import TIERS, HistoryRings, NewRow
from fanlog.telemetry.history_files import HistoryFiles
from fanlog.telemetry.history_reading import Captured
from fanlog.telemetry.history_series import Name, Sampler, SeriesKind, SeriesOwner, maybe_parse
from fanlog.telemetry.snapshot import NamedMetrics, Snapshot

logger = logging.getLogger("fanlog.telemetry")

_STEP_SECONDS = TIERS[0].step_seconds
_KEPT_SECONDS = TIERS[-1].span_seconds
# Rows that wait for the disk: an hour of them.
_WAITING_MAX = 1000
# With less room on the disk nothing is written: it is for messages.
_ROOM_BYTES = 16 * 1024 * 1024
# How long a stop waits for the last rows.
_LAST_SECONDS = 3.0
# Names on display are sampled although the snapshot does not name them: how many, and for how long
# after the last look.
_WATCHED_MAX = 50
_WATCHED_SECONDS = 600.0


class SampleSource(Protocol):
    """Where samples come from."""

    async def patient_snapshot(self) -> Snapshot: ...
    async def watched(self, wanted: Iterable[tuple[SeriesOwner, str]]) -> NamedMetrics: ...


class KeptSeries(NamedTuple):
    """A series that the history has."""

    name: Name
    text: str
    kind: SeriesKind
    seen: float


class MetricHistory:
    """The history of one process. `run` fills it until it is cancelled; then `close`."""

    def __init__(
        self,
        options: TelemetryOptions,
        source: SampleSource,
        now_us: Callable[[], int],
        folder: str | None,
    ) -> None:
        self._history = HistoryRings(options.history_series_max)
        self._sampler = Sampler()
        self._source = source
        self._now_us = now_us
        self._files = None if folder is None else HistoryFiles(f"{folder}/metrics", TIERS)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="fanlog-history")
        self._waiting: list[NewRow] = []
        self._writing: Future[None] | None = None
        self._watched: OrderedDict[tuple[SeriesOwner, str], float] = OrderedDict()
        self.tiers = TIERS

    def now(self) -> float:
        return self._now_us() / 1e6

    async def run(self) -> None:
        """Brings back what is on disk, and takes samples."""
        await self.load()
        while True:
            # In the middle of a slot: a little late is still the same slot.
            wait = (1.5 * _STEP_SECONDS - self.now() % _STEP_SECONDS) % _STEP_SECONDS
            await asyncio.sleep(wait if wait > 0.5 else wait + _STEP_SECONDS)
            try:
                await self.sample()
            except Exception:
                logger.exception("a sample for the history of metrics failed")

    async def load(self) -> None:
        """Brings back what is on disk. Until then there is none."""
        if self._files is not None:
            history = HistoryRings(self._history.series_max)
            self._writing = self._threads.submit(self._files.load, history)
            await asyncio.shield(asyncio.wrap_future(self._writing))
            self._history = history

    async def sample(self) -> None:
        """Takes one sample now."""
        snapshot = await self._source.patient_snapshot()
        wanted = self._looked_at()
        watched = await self._source.watched(wanted) if wanted else None
        values = self._sampler.values(snapshot, watched)
        rows = self._history.add(self.now(), values)
        if self._files is not None:
            self._write(rows, snapshot)

    def _write(self, rows: list[NewRow], snapshot: Snapshot) -> None:
        process = snapshot.process
        if process.disk_total_bytes and process.disk_free_bytes < _ROOM_BYTES:
            self._waiting.clear()
            return
        self._waiting += rows
        del self._waiting[:-_WAITING_MAX]
        self._flush()

    def _flush(self) -> None:
        free = self._writing is None or self._writing.done()
        if self._files is not None and self._waiting and free:
            rows, self._waiting = self._waiting, []
            self._writing = self._threads.submit(self._files.append, rows)

    def watch(self, names: Iterable[Name]) -> None:
        """Marks names as looked at: they are sampled for a while, even if the metrics do not name
        them."""
        until = time.monotonic() + _WATCHED_SECONDS
        for name in names:
            if name.owner is not None:
                self._watched[name.owner, name.of] = until
                self._watched.move_to_end((name.owner, name.of))
        while len(self._watched) > _WATCHED_MAX:
            self._watched.popitem(last=False)

    def _looked_at(self) -> list[tuple[SeriesOwner, str]]:
        now = time.monotonic()
        for name in [name for name, until in self._watched.items() if until < now]:
            del self._watched[name]
        return list(self._watched)

    def series(self) -> Iterator[KeptSeries]:
        """All series that have a value which is still kept. Others may come meanwhile."""
        oldest = self.now() - _KEPT_SECONDS
        for column in list(self._history.columns.values()):
            parsed = maybe_parse(column.name)
            if parsed is not None and column.seen >= oldest:
                yield KeptSeries(parsed[0], column.name, parsed[1], column.seen)

    def capture(self, names: Iterable[str]) -> Captured:
        """The present values of some series, which any thread may read."""
        return Captured(self._history, list(names))

    async def close(self) -> None:
        """Writes the last rows, for a moment."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LAST_SECONDS
        for _ in range(2):
            if self._writing is not None:
                waiting = asyncio.wrap_future(self._writing)
                await asyncio.wait({waiting}, timeout=max(0.0, end - loop.time()))
            self._flush()
        self._threads.shutdown(wait=False, cancel_futures=True)
