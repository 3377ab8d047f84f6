"""The common part of listeners that accept TCP connections: it listens on one address, and accepts
peers up to a limit. The listener decides what happens to a peer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from fanlog.errors import ConfigError, TooManyConnectionsError, allow_more
from fanlog.listeners.admission import Admission
from fanlog.listeners.faults import listen_error
from fanlog.listeners.handshakes import Handshakes

if TYPE_CHECKING:
    from fanlog.security.certificates import Certificates

logger = logging.getLogger("fanlog.listeners")

_BACKLOG = 4096
_ACCEPTS_A_TURN = 128
_ACCEPT_PAUSE_SECONDS = 0.2
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


class Acceptor(ABC):
    """One address, and its limit of connections."""

    protocol: ClassVar[str]
    section: ClassVar[str]
    port_flag: ClassVar[str]
    host_option: ClassVar[str]

    def __init__(self, host: str, port: int, connections_max: int, admission: Admission) -> None:
        self.host = host
        self.port = port
        self._connections_max = connections_max
        self._admission = admission
        self._accept_fault = ""
        # Since the start: accepted peers, and peers that came when it was full.
        self.accepted = 0
        self.refused = 0
        self._sock: socket.socket | None = None
        # Set before `open` to speak TLS.
        self.certificates: Certificates | None = None
        # Set before `open`: other processes listen on the same port, and the kernel gives each
        # connection to one of them.
        self.shares_port = False
        # Set before `open`: workers listen on the port, and hand connections in.
        self.is_handed_in = False
        self._handshakes: Handshakes | None = None
        self.loop: asyncio.AbstractEventLoop

    @property
    def name(self) -> str:
        """Its name in metrics: native, redis or web."""
        return self.protocol.lower()

    @property
    def tls(self) -> bool:
        """Whether it speaks TLS."""
        return self.certificates is not None

    @abstractmethod
    def connection_count(self) -> int:
        """How many connections this listener has."""

    @abstractmethod
    def refusal(self, error: TooManyConnectionsError) -> bytes:
        """The message to a peer that comes when the limit is reached."""

    @abstractmethod
    def let_in(self, sock: socket.socket, peer: str) -> None:
        """Takes a peer in. Raises OSError if it is gone already."""

    def wait_seconds(self) -> float:
        """How long the next peer has to wait in the kernel's queue; 0: accept it now."""
        return 0.0

    def open(self) -> None:
        """Starts listening. `host` and `port` then have the address."""
        self.loop = asyncio.get_running_loop()
        if self.is_handed_in:
            return
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            sock = socket.create_server(
                (self.host, self.port),
                family=family,
                backlog=_BACKLOG,
                reuse_port=self.shares_port,
            )
        except (OSError, OverflowError) as fault:
            raise self.not_open(fault) from fault
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        self._sock = sock
        if self.certificates is not None:
            self._handshakes = Handshakes(self.certificates, self._admission, self._let_in_secure)
        self.loop.add_reader(sock.fileno(), self._accept)

    def not_open(self, fault: OSError | OverflowError) -> ConfigError:
        """Why it can't listen, and what to change."""
        return listen_error(
            fault,
            self.host,
            self.port,
            port_flag=self.port_flag,
            host_option=self.host_option,
        )

    def hand_in(self, sock: socket.socket, peer: str) -> None:
        """Takes a connection that a worker has accepted, and passes on."""
        self._let_in_unless_full(sock, peer)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if self._sock is None:
                return
            if (wait := self.wait_seconds()) > 0:
                self.loop.remove_reader(self._sock.fileno())
                self.loop.call_later(wait, self._accept_again)
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                self._pause_accepting(fault)
                return
            if self._accept_fault:
                self._accept_fault = ""
                logger.warning("connections to port %d are accepted again", self.port)
            try:
                self._welcome(sock, f"{address[0]}:{address[1]}")
            except OSError as fault:
                # The peer is gone already, or the system has no memory for it.
                logger.debug("a connection to port %d failed at once: %s", self.port, fault)
                sock.close()

    def _pause_accepting(self, fault: OSError) -> None:
        """The socket stays readable while a peer waits: without a pause the loop would do nothing
        else. It is logged once, however long it lasts."""
        assert self._sock is not None
        if str(fault) != self._accept_fault:
            self._accept_fault = str(fault)
            advice = (
                " Raise the limit of open files (ulimit -n)."
                if fault.errno in _TOO_MANY_OPEN
                else ""
            )
            logger.warning("port %d accepts no connection for now: %s.%s", self.port, fault, advice)
        self.loop.remove_reader(self._sock.fileno())
        self.loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again)

    def _accept_again(self) -> None:
        if self._sock is not None:
            self.loop.add_reader(self._sock.fileno(), self._accept)

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        if self._handshakes is None:
            self._let_in_unless_full(sock, peer)
            return
        error = self._admission.maybe_refusal(peer)
        if error is not None:
            # A message over TLS would need a handshake.
            logger.debug("%s: refused: %s", peer, error)
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._handshakes.begin(sock, peer)

    def _let_in_secure(self, sock: socket.socket, peer: str) -> None:
        if self._sock is None:
            sock.close()  # no more peers are accepted
        else:
            self._let_in_unless_full(sock, peer)

    def _let_in_unless_full(self, sock: socket.socket, peer: str) -> None:
        error = self._maybe_refusal(peer)
        if error is not None:
            self.refused += 1
            logger.debug("%s: refused: %s", peer, error)
            with contextlib.suppress(OSError):
                sock.send(self.refusal(error))
            sock.close()
            return
        if not self.is_handed_in:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        self.let_in(sock, peer)

    def log_connected(self, peer: str) -> None:
        logger.debug(
            "%s: connected to the %s port %d; it has %d connections",
            peer,
            self.protocol,
            self.port,
            self.connection_count(),
        )

    def _maybe_refusal(self, peer: str) -> TooManyConnectionsError | None:
        connections = self.connection_count()
        if connections >= self._connections_max:
            section = type(self).section
            return TooManyConnectionsError(
                f"There are too many connections: this listener has {connections}, which is the "
                "limit. Close some. " + allow_more(f"{section}.connections_max")
            )
        return self._admission.maybe_refusal(peer)

    @property
    def secure(self) -> bool:
        """Whether it speaks TLS."""
        return self.certificates is not None

    def stop_accepting(self) -> None:
        if self._handshakes is not None:
            self._handshakes.close()
        if self._sock is not None:
            self.loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
