"""Load generators that sample messages as a client does: a TRACED frame in front of a batch, for a
share of the messages and for no more in a second than the broker wants.

Law: without a `Sampler` they send what their parents send, byte for byte.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time

from fanlog.bench.acked import AckedLoad
from fanlog.bench.load import FanoutLoad
from fanlog.format.trace_context import Mark, traced_frame


class Sampler:
    """Which unit has the next sampled message, for a share of all messages and for as many as it
    is allowed: `refill` allows more."""

    def __init__(self, ratio: float, unit_messages: int) -> None:
        self._units = max(1, round(1 / ratio / unit_messages))
        self._left = 0
        self._next_unit = 0
        self._rest = b""
        self.sampled = 0

    def refill(self, most: int) -> None:
        """So many more may be sampled from now on, and no more."""
        self._left = most

    def next_unit(self, unit: int) -> int | None:
        """The unit, from this one on, that is the next with a sampled message; None: none is."""
        if self._rest:
            return unit
        if self._left <= 0:
            return None
        self._next_unit = max(self._next_unit, unit)
        return self._next_unit

    def send(self, sock: socket.socket, unit: bytes | memoryview) -> bool:
        """Sends the frame and the unit, in one piece as a client does, or what is left of them;
        False if the socket is full."""
        if not self._rest:
            # An id of its own for each, as in life.
            frame = traced_frame([Mark(0, os.urandom(16), os.urandom(8))])
            self._rest = b"".join((frame, unit))
            self._next_unit += self._units
            self._left -= 1
            self.sampled += 1
        try:
            self._rest = self._rest[sock.send(self._rest) :]
        except BlockingIOError:
            return False
        return not self._rest


class MarkedFanout(FanoutLoad):
    """A publisher that samples, and its subscribers."""

    sampler: Sampler | None = None

    def slice(self, slice_s: float) -> float:
        """Publish for a moment, and wait until everybody has everything; the time it took."""
        began = time.perf_counter()
        self.pump(began + slice_s)
        self.drain()
        return time.perf_counter() - began

    def _send(self, limit_bytes: int) -> None:
        sampler, size = self.sampler, self._unit_bytes
        while sampler is not None and self._sent_bytes < limit_bytes:
            unit = sampler.next_unit(-(-self._sent_bytes // size))
            if unit is None or unit * size >= limit_bytes:
                break
            super()._send(unit * size)
            whole = self._sent_bytes == unit * size
            if not whole or not sampler.send(self._publisher, self._block[:size]):
                return
            self._sent_bytes += size
        super()._send(limit_bytes)


@dataclasses.dataclass(slots=True)
class MarkedAcked(AckedLoad):
    """A publisher that samples, and waits for acknowledgements."""

    sampler: Sampler | None = None

    @classmethod
    def of(cls, load: AckedLoad, sampler: Sampler | None) -> MarkedAcked:
        """The same publisher, which samples."""
        given = {field.name: getattr(load, field.name) for field in dataclasses.fields(load)}
        return cls(**given, sampler=sampler)

    def send(self, limit_bytes: int) -> None:
        sampler, size = self.sampler, self.unit_bytes
        while sampler is not None and self.sent_bytes < limit_bytes:
            unit = sampler.next_unit(-(-self.sent_bytes // size))
            if unit is None or unit * size >= limit_bytes:
                break
            AckedLoad.send(self, unit * size)
            whole = self.sent_bytes == unit * size
            if not whole or not sampler.send(self.sock, self.block[:size]):
                return
            self.sent_bytes += size
        AckedLoad.send(self, limit_bytes)
