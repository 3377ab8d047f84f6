"""TLS for benchmarks: certificates for the systems, and sockets for the load.

Law: every system gets the same certificate kind (ECDSA P-256) and TLS 1.3, and readers decrypt what
they receive, as real ones must. The load does not check certificates: that is part of a handshake,
and no handshake is measured.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import cast

from fanlog.bench.load import POLL_TIMEOUT_S, FanoutLoad
from fanlog.bench.systems import HOST, BenchError
from fanlog.bench.wires.base import connect
from fanlog.listeners.tls import TlsSocket

EVENTS_MAX = 2048


def make_certificates(folder: Path) -> tuple[str, str]:
    """A certificate and its key, for one run."""
    from fanlog.security.dev_certificates import open_authority  # noqa: PLC0415 - it takes a while

    certificate, key = open_authority(folder / "tls").issue("system", ["localhost", HOST])
    return str(certificate), str(key)


def connect_tls(port: int) -> TlsSocket:
    """A blocking connection after its handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = TlsSocket
    return cast("TlsSocket", context.wrap_socket(connect(port)))


class TlsFanoutLoad(FanoutLoad):
    """The load, with a publisher and subscribers that speak TLS."""

    connect = staticmethod(connect_tls)

    def _send_some(self, data: memoryview) -> int:
        # A record that did not fit continues with `sendmsg` only.
        return self._publisher.sendmsg([data])

    def _receive(self, timeout_s: float = POLL_TIMEOUT_S) -> None:
        received, readers, scratch = self._received, self._readers_by_number, self._scratch
        for number, _ in self._epoll.poll(timeout_s, EVENTS_MAX):
            if number not in readers:
                self._discard_replies()
                continue
            try:
                count = readers[number](scratch)
            except BlockingIOError:
                continue  # half a record, or one that is no message
            if count == 0:
                raise BenchError("the system closed a subscriber's connection")
            received[number] += count
