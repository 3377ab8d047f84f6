"""Load generators that sample messages as a client does: a TRACED frame in front of a batch, for a
share of the messages and for no more in a second than the broker wants.

Law: a frame goes out in one call with what is before and behind it. With a call of its own it would
wake the broker once more, and that is what would be measured. Without a `FrameMarker` they send
what their parents send, byte for byte.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time

from fanlog.bench.acked import AckedLoad
from fanlog.bench.load import FanoutLoad
from fanlog.format.trace_context import SampledRecord, traced_frame


class FrameMarker:
    """The frames of one publisher. `refill` sets how many to send in the next moment, evenly."""

    def __init__(self, ratio: float, unit_messages: int) -> None:
        self._units = max(1, round(1 / ratio / unit_messages))
        self._left = 0
        self._every_s = 0.0
        self._next_s = 0.0
        self._next_unit = 0
        # What is left of the frame that goes out now, and before which byte of the stream.
        self._frame = b""
        self._at = 0
        self.sampled = 0

    def refill(self, most: int, seconds: float) -> None:
        """At most this many within this many seconds."""
        self._left = most
        self._every_s = seconds / max(1, most)

    def send(
        self, sock: socket.socket, block: memoryview, unit_bytes: int, sent: int, limit: int
    ) -> int:
        """Sends once, as much as the limit and the socket allow; how far the stream then is, frames
        not counted. Raises BlockingIOError if the socket is full."""
        if not self._frame:
            self._prepare(-(-sent // unit_bytes), unit_bytes)
        start = sent % len(block)
        end = min(len(block), start + limit - sent)
        before = self._at - sent
        if not self._frame or not 0 <= before <= end - start:
            return sent + sock.send(block[start:end])
        taken = sock.sendmsg(
            [block[start : start + before], self._frame, block[start + before : end]]
        )
        first = min(taken, before)
        framed = min(taken - first, len(self._frame))
        self._frame = self._frame[framed:]
        return sent + taken - framed

    def _prepare(self, unit: int, unit_bytes: int) -> None:
        now = time.perf_counter()
        if self._left <= 0 or unit < self._next_unit or now < self._next_s:
            return
        # An id of its own for each, as in life.
        self._frame = traced_frame([SampledRecord(0, os.urandom(16), os.urandom(8))])
        self._at = unit * unit_bytes
        self._next_unit = unit + self._units
        self._next_s = now + self._every_s
        self._left -= 1
        self.sampled += 1


class MarkedFanout(FanoutLoad):
    """A publisher that samples, and its subscribers."""

    sampler: FrameMarker | None = None

    def slice(self, slice_s: float) -> float:
        """Publishes for a moment, and waits until all have everything. Returns the time taken."""
        began = time.perf_counter()
        self.pump(began + slice_s)
        self.drain()
        return time.perf_counter() - began

    def _send(self, limit_bytes: int) -> None:
        if self.sampler is None:
            super()._send(limit_bytes)
            return
        while self._sent_bytes < limit_bytes:
            try:
                self._sent_bytes = self.sampler.send(
                    self._publisher, self._block, self._unit_bytes, self._sent_bytes, limit_bytes
                )
            except BlockingIOError:
                return


@dataclasses.dataclass(slots=True)
class MarkedAcked(AckedLoad):
    """A publisher that samples, and waits for acknowledgements."""

    sampler: FrameMarker | None = None

    @classmethod
    def of(cls, load: AckedLoad, sampler: FrameMarker | None) -> MarkedAcked:
        """The same publisher, which samples."""
        given = {field.name: getattr(load, field.name) for field in dataclasses.fields(load)}
        return cls(**given, sampler=sampler)

    def send(self, limit_bytes: int) -> None:
        if self.sampler is None:
            AckedLoad.send(self, limit_bytes)
            return
        while self.sent_bytes < limit_bytes:
            try:
                self.sent_bytes = self.sampler.send(
                    self.sock, self.block, self.unit_bytes, self.sent_bytes, limit_bytes
                )
            except BlockingIOError:
                return
