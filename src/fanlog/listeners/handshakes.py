"""TLS handshakes of a listener: none of them blocks the loop, and each has a time limit.

A handshake costs the broker about a millisecond of computing, and a peer nothing. So a turn of the
loop does only a few steps, each handshake has a time limit, and when there are too many at once the
oldest is ended: an honest peer is done long before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

from fanlog.errors import ProtocolError
from fanlog.format.foreign import maybe_answer, maybe_protocol
from fanlog.format.frames import FrameKind, is_hello, message_frame
from fanlog.format.messages import ErrorAnswer
from fanlog.listeners.admission import Admission
from fanlog.listeners.tls import TlsSocket
from fanlog.security.certificates import Certificates, certified_names

logger = logging.getLogger("fanlog.tls")

_STEPS_A_TURN = 4
_SWEEP_SECONDS = 1.0
_PEEK_BYTES = 64
_DROP_BYTES = 64 * 1024
_DROPPED_BYTES_MAX = 1024 * 1024
_CLIENT_HELLO = b"\x16\x03"
_ADVICE = {
    "UNSUPPORTED_PROTOCOL": "it offers no TLS 1.3, and this broker takes nothing below",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate (tls.client_certificates is "
    '"required")',
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not from an authority in tls.client_ca_file, "
    "or has expired",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority of this broker's certificate: give "
    "it tls_ca_file",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refused this broker's certificate: is it for this host?",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this broker's certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refused this broker's certificate",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection; perhaps it does not trust this "
    "broker's certificate: see what it logged",
}


class _Handshake:
    """One peer that is not accepted yet."""

    __slots__ = ("began_at", "dropped", "fd", "peer", "sock")

    def __init__(self, sock: socket.socket, peer: str, began_at: float) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.began_at = began_at
        # Bytes that the peer sent after it was refused.
        self.dropped = 0


class Handshakes:
    """`let_in` gets a socket when its handshake is done."""

    def __init__(
        self,
        certificates: Certificates,
        admission: Admission,
        let_in: Callable[[TlsSocket, str], None],
    ) -> None:
        self._certificates = certificates
        self._admission = admission
        self._let_in = let_in
        self._loop = asyncio.get_running_loop()
        # The oldest first.
        self._open: dict[_Handshake, None] = {}
        self._ready: deque[_Handshake] = deque()
        self._working = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, sock: socket.socket, peer: str) -> None:
        if len(self._open) >= self._certificates.options.handshakes_max:
            oldest = next(iter(self._open))
            logger.debug("%s: cut, too many TLS handshakes (tls.handshakes_max)", oldest.peer)
            self._end(oldest)
        new = _Handshake(sock, peer, self._loop.time())
        self._open[new] = None
        self._admission.came(peer)
        self._loop.add_reader(new.fd, self._is_ready, new)
        if self._sweeper is None:
            self._swept_at = new.began_at
            self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Not if the loop itself was stalled: bytes that arrived meanwhile are read before the next
        check."""
        now = self._loop.time()
        stalled = now - self._swept_at > 2 * _SWEEP_SECONDS
        self._swept_at = now
        limit = now - self._certificates.options.handshake_timeout_seconds
        for handshake in list(self._open):
            if stalled or handshake.began_at > limit:
                break
            logger.debug(
                "%s: cut, no TLS handshake within tls.handshake_timeout_seconds", handshake.peer
            )
            self._end(handshake)
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep) if self._open else None

    def close(self) -> None:
        for handshake in list(self._open):
            self._end(handshake)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    # One turn after the other

    def _is_ready(self, handshake: _Handshake) -> None:
        self._rest(handshake)
        self._ready.append(handshake)
        if not self._working:
            self._working = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        for _ in range(_STEPS_A_TURN):
            if not self._ready:
                break
            handshake = self._ready.popleft()
            if handshake in self._open:
                self._step(handshake)
        if self._ready:
            self._loop.call_soon(self._work)
        else:
            self._working = False

    def _step(self, handshake: _Handshake) -> None:
        try:
            if not isinstance(handshake.sock, TlsSocket) and not self._wrap(handshake):
                return
            sock = cast("TlsSocket", handshake.sock)
            sock.do_handshake()
        except (ssl.SSLWantReadError, BlockingIOError):
            self._loop.add_reader(handshake.fd, self._is_ready, handshake)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(handshake.fd, self._is_ready, handshake)
        except ssl.SSLError as fault:
            self._failed(handshake, fault)
        except OSError as fault:
            logger.debug("%s: gone in its TLS handshake: %s", handshake.peer, fault)
            self._end(handshake)
        else:
            self._done(handshake, sock)

    def _wrap(self, handshake: _Handshake) -> bool:
        """Starts TLS if the peer speaks it."""
        begin = handshake.sock.recv(_PEEK_BYTES, socket.MSG_PEEK)
        if not begin:
            self._end(handshake)
            return False
        if is_hello(begin) or not begin.startswith(_CLIENT_HELLO[: len(begin)]):
            self._tell_plain(handshake, begin)
            return False
        handshake.sock = self._certificates.context.wrap_socket(
            handshake.sock, server_side=True, do_handshake_on_connect=False
        )
        return True

    def _done(self, handshake: _Handshake, sock: TlsSocket) -> None:
        self._forget(handshake)
        try:
            sock.certificate_names = certified_names(sock.getpeercert())
            self._let_in(sock, handshake.peer)
        except OSError as fault:
            logger.debug("%s: failed at once: %s", handshake.peer, fault)
            sock.close()

    # What goes wrong

    def _failed(self, handshake: _Handshake, fault: ssl.SSLError) -> None:
        self.failed += 1
        why = _ADVICE.get(fault.reason or "", fault.reason or str(fault))
        logger.warning("%s: no TLS connection: %s.", handshake.peer, why)
        self._linger(handshake)

    def _tell_plain(self, handshake: _Handshake, begin: bytes) -> None:
        """A peer without TLS gets an error in its own protocol."""
        self.failed += 1
        spoken = "a Fanlog client" if is_hello(begin) else maybe_protocol(begin)
        sentence = (
            "This port speaks TLS, and the connection began without it. Use an address that "
            "begins with fanlogs://, rediss:// or https://."
        )
        logger.warning(
            "%s: %s speaks without TLS to a port with TLS: use fanlogs://, rediss:// or https://.",
            handshake.peer,
            spoken or "it",
        )
        if is_hello(begin):
            error = ProtocolError(sentence)
            answer = message_frame(FrameKind.ERROR, ErrorAnswer(error.code, str(error)))
        else:
            answer = maybe_answer(begin, sentence) or b""
        sock = handshake.sock
        with contextlib.suppress(OSError):
            sock.send(answer)
        self._linger(handshake)

    def _linger(self, handshake: _Handshake) -> None:
        """Reads and drops the peer's bytes until it closes: unread bytes would turn our close into
        a reset, which overtakes the error message. The time limit holds here as well."""
        try:
            # Not the method of SSLSocket, which would say goodbye first.
            socket.socket.shutdown(handshake.sock, socket.SHUT_WR)
        except OSError:
            self._end(handshake)
            return
        self._loop.add_reader(handshake.fd, self._drop, handshake)
        self._drop(handshake)

    def _drop(self, handshake: _Handshake) -> None:
        try:
            got = len(socket.socket.recv(handshake.sock, _DROP_BYTES))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = 0
        handshake.dropped += got
        if not got or handshake.dropped > _DROPPED_BYTES_MAX:
            self._end(handshake)

    # The end

    def _rest(self, handshake: _Handshake) -> None:
        self._loop.remove_reader(handshake.fd)
        self._loop.remove_writer(handshake.fd)

    def _forget(self, handshake: _Handshake) -> None:
        self._rest(handshake)
        if self._open.pop(handshake, True) is None:
            self._admission.went(handshake.peer)

    def _end(self, handshake: _Handshake) -> None:
        self._forget(handshake)
        handshake.sock.close()
