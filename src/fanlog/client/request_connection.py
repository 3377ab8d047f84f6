"""A connection for requests and answers, over a blocking socket and without a thread: a shell of
`ClientCore` for programs that do one thing at a time, such as Spark's tasks.

Requests may be sent ahead of their answers, so that the next stretch of a log is on its way while
the last one is being worked on. It pings only while it waits for what takes long (`ask_at_length`):
a connection that the broker has closed between two requests is made again by the next `ask`. It
reads whole frames from the kernel, so that a payload is never copied.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import msgspec

from fanlog.client.address import Address, no_answer, parse_urls, unreachable
from fanlog.client.core.client_core import ClientCore
from fanlog.client.core.events import Event, RequestFailed, Welcomed
from fanlog.client.core.handshake import no_greeting
from fanlog.client.core.requests import may_ask_again
from fanlog.client.core.states import CONVERSING
from fanlog.client.core.timing import ConnectAttempts, Heartbeat, HeartbeatStep
from fanlog.client.credentials import check_credentials, get_login_now
from fanlog.client.tls import no_tls, server_name, shared_context, wrap
from fanlog.config import ClientOptions
from fanlog.errors import (
    ConnectError,
    ConnectionLostError,
    FanlogError,
    FormatError,
    RequestTimeoutError,
    UnauthenticatedError,
)
from fanlog.format import messages
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameKind, frame
from fanlog.format.messages import decode

T = TypeVar("T")

_TIMEVAL = struct.Struct("@ll")


class _BlockingAnswer:
    """The result of one request, once it has come."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: bytes | FanlogError | None = None

    def answered(self, payload: bytes) -> None:
        self.outcome = payload

    def failed(self, error: FanlogError) -> None:
        self.outcome = error


class RequestConnection:
    """One connection to a broker. Close it, or use `with`. It raises at once if the broker can't be
    reached. A `patient` connection waits for the broker, as every connection does after a loss.

    >>> with RequestConnection("fanlog://127.0.0.1:7420") as broker:  # doctest: +SKIP
    ...     broker.ask(FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus)
    """

    def __init__(
        self, url: str, options: ClientOptions | None = None, *, patient: bool = False
    ) -> None:
        # Nodes of a cluster; the first is the one that answered last.
        self._addresses = list(parse_urls(url))
        self._options = options or ClientOptions()
        check_credentials(self._options)
        self._core = ClientCore(self._options)
        self._socket: socket.socket | None = None
        # Requests of this connection whose answers nobody has taken.
        self._asked: dict[int, _BlockingAnswer] = {}
        self.welcome: messages.Welcome = self.reconnect() if patient else self.connect()

    # The connection

    @property
    def address(self) -> Address:
        """Of the node that it connects to."""
        return self._addresses[0]

    def connect(self) -> messages.Welcome:
        """Connects again, to the first node that answers. Requests on the old connection get no
        answer."""
        for _ in self._addresses[1:]:
            try:
                return self._connect()
            except ConnectError:
                self._addresses.append(self._addresses.pop(0))
        return self._connect()

    def _connect(self) -> messages.Welcome:
        self.close()
        self._asked.clear()
        self._core.dial()
        try:
            self._socket = opened = self._open_socket()
            self._limit_waiting(opened, self._options.connect_timeout_seconds)
            self.welcome = self._greet()
        finally:
            if self._core.state not in CONVERSING:
                self.close()
        self._core.resumed()
        self._limit_waiting(opened, self._options.request_timeout_seconds)
        return self.welcome

    def _greet(self) -> messages.Welcome:
        try:
            self._send(self._core.greet(get_login_now(self._options), time.monotonic()))
            while True:
                event = self._receive()
                if isinstance(event, Welcomed):
                    return event.welcome
        except RequestTimeoutError:
            timeout_seconds = self._options.connect_timeout_seconds
            raise no_greeting(str(self.address), timeout_seconds) from None
        except (ConnectError, UnauthenticatedError):
            raise
        except FanlogError as fault:
            raise ConnectError(f"There is no connection to {self.address}: {fault}") from fault

    def _open_socket(self) -> socket.socket:
        address, options = self.address, self._options
        context = shared_context(options) if address.tls else None
        try:
            opened = socket.create_connection(address[:2], options.connect_timeout_seconds)
            if context is not None:
                opened = wrap(opened, context, server_name(address, options))
        except TimeoutError:
            raise no_answer(address, options.connect_timeout_seconds) from None
        except ssl.SSLError as fault:
            raise no_tls(address, fault) from fault
        except OSError as fault:
            raise unreachable(address, fault) from fault
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def reconnect(self) -> messages.Welcome:
        """Restores a lost connection. It tries as long as a request may take."""
        give_up_at = time.monotonic() + self._options.request_timeout_seconds
        attempts = ConnectAttempts(self._options, give_up_at)
        while True:
            try:
                return self.connect()
            except ConnectError:
                wait_seconds = attempts.maybe_wait_seconds(time.monotonic())
                if wait_seconds is None:
                    raise
            time.sleep(wait_seconds)

    def close(self) -> None:
        """Disconnects. `connect` connects again."""
        opened, self._socket = self._socket, None
        self._core.lose(None)
        if opened is not None:
            with suppress(OSError):
                opened.sendall(frame(FrameKind.GOODBYE))
            opened.close()

    def _lose(self, why: Exception | None) -> NoReturn:
        """Gives the connection up, and raises the error."""
        if isinstance(why, ssl.SSLError) and self._core.state not in CONVERSING:
            # With TLS 1.3 a client hears of this only after its own part of the handshake.
            why = no_tls(self.address, why)
        error = self._core.lose(why, str(self.address))
        self.close()
        raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Requests

    def ask(self, kind: FrameKind, message: msgspec.Struct, answer: type[T]) -> T:
        """Sends a request and waits for the answer. Repeats it once on a new connection if the old
        one is lost, so use it only for requests that may be sent twice."""
        return decode(answer, self.ask_raw(kind, msgspec.msgpack.encode(message)))

    def ask_raw(self, kind: FrameKind, payload: bytes) -> bytes:
        if not self._asked and self._socket is not None and self._readable(0):
            # Nobody asked for anything: it was idle for too long, and the broker has closed it.
            self.reconnect()
        try:
            return self.take(self.post(kind, payload))
        except ConnectionLostError as lost:
            if not may_ask_again(lost):
                raise
            self.reconnect()
            return self.take(self.post(kind, payload))

    def ask_at_length(
        self, kind: FrameKind, message: msgspec.Struct, answer: type[T], seconds: float
    ) -> T:
        """Sends a request that may take long, and repeats it whenever the connection is lost or
        silent. Only for requests that may be sent many times. Gives up when the broker can't be
        reached."""
        give_up_at = time.monotonic() + seconds
        while True:
            try:
                number = self.post(kind, message)
                self._await(number, give_up_at)
                return decode(answer, self.take(number))
            except (ConnectionLostError, RequestTimeoutError):
                if time.monotonic() >= give_up_at:
                    raise
            self.reconnect()

    def post(self, kind: FrameKind, message: msgspec.Struct | bytes) -> int:
        """Sends a request; `take` waits for its answer."""
        answer = _BlockingAnswer()
        number, data = self._core.ask(kind, message, answer)
        self._send(data)
        self._asked[number] = answer
        return number

    def post_parts(self, kind: FrameKind, *parts: bytes | memoryview) -> int:
        """The same with a payload in parts, which are not joined."""
        answer = _BlockingAnswer()
        number, head = self._core.ask_in_parts(kind, sum(map(len, parts)), answer)
        self._send(head)
        for part in parts:
            self._send(part)
        self._asked[number] = answer
        return number

    def take(self, number: int) -> bytes:
        """The answer to a request. Raises the broker's error."""
        answer = self._find_asked(number)
        while answer.outcome is None:
            self._receive()
        del self._asked[number]
        if isinstance(answer.outcome, FanlogError):
            raise answer.outcome
        return answer.outcome

    def _find_asked(self, number: int) -> _BlockingAnswer:
        answer = self._asked.get(number)
        if answer is None:
            raise ConnectionLostError("The connection was lost before the answer came.")
        return answer

    def _await(self, number: int, give_up_at: float) -> None:
        """Waits until there is an answer, with pings, so that the broker keeps the connection. A
        connection that does not answer pings counts as lost."""
        silence_max = self._options.request_timeout_seconds
        idle_max = self.welcome.idle_timeout_seconds
        between = min(self._options.ping_seconds, idle_max / 3, silence_max / 3)
        answer = self._find_asked(number)
        heartbeat = Heartbeat(between, silence_max)
        heartbeat.start(time.monotonic())
        while answer.outcome is None:
            now = time.monotonic()
            beat = heartbeat.check(now, between)
            if beat is HeartbeatStep.SILENT or now >= give_up_at:
                self._fall_silent()
            if beat is HeartbeatStep.PING:
                self._send(frame(FrameKind.PING))
            if self._readable(between):
                self._receive()
                heartbeat.heard(time.monotonic())

    def _readable(self, seconds: float) -> bool:
        opened = self._opened()
        if isinstance(opened, ssl.SSLSocket) and opened.pending():
            return True
        waiting = select.poll()
        waiting.register(opened, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def _fall_silent(self) -> NoReturn:
        self.close()
        raise RequestTimeoutError(
            f"The broker at {self.address} did not answer within "
            f"{self._options.request_timeout_seconds} s. The outcome is unknown."
        )

    # Bytes

    def _receive(self) -> Event | None:
        """Takes one frame. The core passes an answer to its request. Of the other events, only the
        greeting and the end matter to this connection."""
        head = self._take_bytes(FRAME_HEADER_BYTES)
        try:
            size = self._core.payload_bytes(head)
            payload = self._take_bytes(size) if size else b""
            event = self._core.feed_frame(head, payload, time.monotonic())
        except FormatError as fault:
            self._lose(fault)
        if isinstance(event, RequestFailed):
            self._lose(None)
        return event

    def _take_bytes(self, size: int) -> bytes:
        opened = self._opened()
        # Over TLS a call brings one record at most.
        flags = 0 if isinstance(opened, ssl.SSLSocket) else socket.MSG_WAITALL
        try:
            data = opened.recv(size, flags)
            if len(data) == size:
                return data
            parts = [data]
            missing = size - len(data)
            while data and missing:
                data = opened.recv(missing, flags)
                parts.append(data)
                missing -= len(data)
        except (BlockingIOError, TimeoutError):
            self._fall_silent()
        except OSError as fault:
            self._lose(fault)
        if missing:
            self._lose(None)
        return b"".join(parts)

    def _send(self, data: bytes | memoryview) -> None:
        opened = self._opened()
        try:
            opened.sendall(data)
        except OSError as fault:
            self._lose(fault)

    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise self._core.lost_error()
        return self._socket

    @staticmethod
    def _limit_waiting(opened: socket.socket, seconds: float) -> None:
        if isinstance(opened, ssl.SSLSocket):
            opened.settimeout(seconds)
            return
        # The kernel's own timeouts leave the socket blocking, so that one call takes a whole frame.
        opened.settimeout(None)
        limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
