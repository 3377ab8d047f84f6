"""Decodes batches: small ones on the loop, large ones in threads, so that nobody waits.

The measure is the cost of decoding, which the batch itself shows (`decoding_bytes`): unpacked bytes
if it is compressed, and an amount for each record. The total unpacked in threads at a time is
limited; the rest waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fanlog.broker.messages.batch_sizes import unpack_limits
from fanlog.broker.ports import Runtime
from fanlog.config import BrokerOptions
from fanlog.errors import FormatError
from fanlog.format.batch import split_batches
from fanlog.format.codecs import UnpackLimits
from fanlog.format.columns import read_sizes, sizes_at
from fanlog.format.header import HEADER_BYTES, BatchHeader, Bytes

T = TypeVar("T")
# Decoding a record takes about as long as unpacking this many bytes.
_RECORD_BYTES = 4
# Rendering one as JSON costs this much more, and its bytes a share of the cost of unpacking.
_RENDERED_RECORD_BYTES = 12
_RENDERED_SHARE = 16
# Bytes decoded at once in a thread, unless a single batch is larger.
_STRETCH_BYTES = 1 << 20
# Others have work for those threads too.
_AT_A_TIME = 2


def decoding_bytes(data: Bytes, at: int, header: BatchHeader, limits: UnpackLimits) -> int:
    """The cost of decoding the batch at `at`. One that will be refused costs almost nothing."""
    work = _RECORD_BYTES * header.record_count
    if not header.codec:
        return work
    sizes = at + HEADER_BYTES + sizes_at(header.flags, header.record_count)
    try:
        unpacked_bytes, packed_bytes = read_sizes(data, sizes, at + header.length)
        limits.check(unpacked_bytes, packed_bytes)
    except FormatError:
        return 0
    return work + unpacked_bytes


class _Job(NamedTuple):
    size: int
    work: Callable[[], Any]
    done: Callable[[Any], None]


class Unpacker:
    """Used on the loop only, except for the work itself."""

    def __init__(self, runtime: Runtime, options: BrokerOptions) -> None:
        self._runtime = runtime
        self._loop_bytes_max = options.unpack_loop_bytes_max
        self._thread_bytes_max = options.unpack_thread_bytes_max
        self._waiting: deque[_Job] = deque()
        self._running = 0
        self.limits = unpack_limits(options)
        self.running_bytes = 0

    def is_small(self, work_bytes: int) -> bool:
        """Whether a cost is small enough for the loop."""
        return work_bytes <= self._loop_bytes_max

    def decoding_bytes(self, piece: Bytes, *, records: bool = False) -> int:
        """The cost of decoding all batches of a piece; with `records`, of rendering them too."""
        return sum(
            self._work(piece, at, header, records=records) for at, header in split_batches(piece)
        )

    def _work(self, piece: Bytes, at: int, header: BatchHeader, *, records: bool) -> int:
        work = decoding_bytes(piece, at, header, self.limits)
        if not records or not work:
            return work
        rendering = _RENDERED_RECORD_BYTES * header.record_count
        return work + rendering + max(work, header.length) // _RENDERED_SHARE

    def first_stretch(
        self, piece: memoryview, *, records: bool = False
    ) -> tuple[memoryview, int, int]:
        """The first batches of a piece that are decoded at once, at least one; their cost; and the
        offset after them."""
        work = end = next_offset = 0
        for at, header in split_batches(piece):
            more = self._work(piece, at, header, records=records)
            if end and work + more > _STRETCH_BYTES:
                break
            work += more
            end, next_offset = at + header.length, header.next_offset
        return piece[:end], work, next_offset

    def in_thread(
        self, size: int, work: Callable[[], T], done: Callable[[T | Exception], None]
    ) -> None:
        """Does work that unpacks `size` bytes in a thread, as soon as there is room for it."""
        self._waiting.append(_Job(size, work, done))
        self._next()

    def _next(self) -> None:
        while self._waiting and self._running < _AT_A_TIME:
            job = self._waiting[0]
            if self._running and self.running_bytes + job.size > self._thread_bytes_max:
                return
            self._waiting.popleft()
            self._running += 1
            self.running_bytes += job.size
            self._start(job)

    def _start(self, job: _Job) -> None:
        def ended(result: Any) -> None:
            self._running -= 1
            self.running_bytes -= job.size
            self._next()
            job.done(result)

        self._runtime.in_background(job.work, ended)
