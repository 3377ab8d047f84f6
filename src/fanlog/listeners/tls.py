"""TLS on a listener's socket, with the interface of a plain one.

A listener's connections send and receive on non-blocking sockets. `TlsSocket` does the same over
TLS: bytes that do not fit raise BlockingIOError, and only the one record that OpenSSL has already
encrypted is queued. `handshakes.py` creates them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanlog.broker.ports import SendBuffer

# The most that one record of TLS holds.
RECORD_BYTES = 16 * 1024
# Records that one read takes. A record of one byte costs as much as a large one, so that a peer
# could keep the loop busy for a second with what fits into the buffer.
READS_MAX = 64


class TlsSocket(ssl.SSLSocket):
    """A socket after its handshake. `certificate_names` are those of the peer's certificate, which
    is checked; empty if it showed none."""

    certificate_names: tuple[str, ...] = ()
    # The record that did not fit. OpenSSL has encrypted it, so it goes out before all else.
    _stuck: SendBuffer | None = None

    def _write(self, record: SendBuffer) -> int:
        try:
            sent = super().send(record)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._stuck = record
            raise BlockingIOError from None
        self._stuck = None
        return sent

    def send(self, data: Any, flags: int = 0) -> int:
        if self._stuck is not None:
            raise BlockingIOError
        if len(data) <= RECORD_BYTES:
            return self._write(data)
        return self._write_all(_records((data,)))

    def sendmsg(self, buffers: Iterable[Any], *ignored: Any) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same with several buffers, in as few records as possible. After a BlockingIOError the
        next `sendmsg` has to begin with the same bytes, and `send` must not be used: the record
        that did not fit may hold several buffers."""
        if self._stuck is not None:
            return self._write(self._stuck)
        return self._write_all(_records(buffers))

    def _write_all(self, records: Iterator[SendBuffer]) -> int:
        sent = 0
        try:
            for record in records:
                taken = self._write(record)
                sent += taken
                if taken < len(record):
                    # The peer wants smaller records.
                    break
        except BlockingIOError:
            if not sent:
                raise
        return sent

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Reads the available bytes that fit, up to a limited number of records. The buffer has
        room for a record, so that OpenSSL keeps no bytes that the loop does not know of."""
        view = memoryview(buffer)
        room = len(view)
        size = 0
        try:
            for _ in range(READS_MAX):
                if room - size < RECORD_BYTES:
                    break
                taken = super().recv_into(view[size:])
                if not taken:
                    break
                size += taken
        except ssl.SSLWantReadError:
            if not size:
                raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            # It asked for new keys, and does not take the answer. To wait for that would keep the
            # loop busy: the socket stays readable.
            raise ConnectionAbortedError("the peer asks for new keys and takes none") from None
        except OSError:
            if not size:
                raise
        return size

    def shutdown(self, how: int) -> None:
        """Signals the end of our data. The peer's data can still be read."""
        with contextlib.suppress(OSError, ValueError):
            assert self._sslobj is not None  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
            self._sslobj.shutdown()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        # The method of SSLSocket would drop TLS, and then read encrypted bytes.
        socket.socket.shutdown(self, how)


def _records(buffers: Iterable[SendBuffer]) -> Iterator[SendBuffer]:
    """The bytes of several buffers, in pieces that are a record each: small ones are joined, and
    large ones are cut without a copy."""
    gathered: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while view:
            part = view[: RECORD_BYTES - size]
            view = view[len(part) :]
            gathered.append(part)
            size += len(part)
            if size == RECORD_BYTES:
                yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
                gathered, size = [], 0
    if gathered:
        yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
