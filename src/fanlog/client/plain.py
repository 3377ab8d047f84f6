"""A connection for programs that do one thing at a time: a blocking socket and no thread.

What Spark's tasks read and write with. Requests may be sent ahead of their answers, so that the
next stretch of a log is on its way while the last one is being worked on. It pings only while it
waits for what takes long (`ask_at_length`): a connection that the broker has closed between two
requests is made again by the next `ask`.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from fanlog.client.address import Address, cut_off, no_answer, no_greeting, parse_url, unreachable
from fanlog.client.core import hello
from fanlog.client.credentials import check_credentials, get_login_now
from fanlog.client.tls import no_tls, server_name, shared_context, wrap
from fanlog.config import ClientOptions
from fanlog.errors import (
    ConnectError,
    ConnectionLostError,
    FanlogError,
    ProtocolError,
    RequestTimeoutError,
    UnauthenticatedError,
    from_wire,
)
from fanlog.format import messages
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    FrameHeader,
    FrameKind,
    check_welcome,
    frame,
    message_frame,
    read_frame_header,
)
from fanlog.format.messages import decode

T = TypeVar("T")

_ANSWERS = (FrameKind.OK, FrameKind.FETCHED)
_TIMEVAL = struct.Struct("@ll")


class PlainConnection:
    """One connection to a broker. Close it, or use `with`. A broker that is not there is told of at
    once; if it is `patient`, it is waited for, as it is when a connection is lost.

    >>> with PlainConnection("fanlog://127.0.0.1:7420") as broker:  # doctest: +SKIP
    ...     broker.ask(FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus)
    """

    def __init__(
        self, url: str, options: ClientOptions | None = None, *, patient: bool = False
    ) -> None:
        self.address: Address = parse_url(url)
        self._options = options or ClientOptions()
        check_credentials(self._options)
        self._socket: socket.socket | None = None
        self._request_number = 0
        # Answers that came before they were asked for.
        self._early: dict[int, bytes | FanlogError] = {}
        self.welcome: messages.Welcome = self.reconnect() if patient else self.connect()

    # The connection

    def connect(self) -> messages.Welcome:
        """Connects anew; what was asked for on the old connection will not be answered."""
        self.close()
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
        self._socket = opened
        self._limit_waiting(opened, options.connect_timeout_seconds)
        try:
            self._send(hello(options.name, get_login_now(options)))
            self.welcome = self._greeting()
        except RequestTimeoutError:
            self.close()
            raise no_greeting(str(address), options.connect_timeout_seconds) from None
        except ConnectionLostError as fault:
            self.close()
            if isinstance(fault.__cause__, ssl.SSLError):
                raise no_tls(address, fault.__cause__) from fault
            raise cut_off(str(address)) from fault
        except UnauthenticatedError:
            self.close()
            raise
        except FanlogError as fault:
            self.close()
            raise ConnectError(f"There is no connection to {address}: {fault}") from fault
        self._limit_waiting(opened, options.request_timeout_seconds)
        return self.welcome

    def reconnect(self) -> messages.Welcome:
        """Brings a lost connection back; it is tried as long as a request may take."""
        give_up_at = time.monotonic() + self._options.request_timeout_seconds
        backoff = self._options.backoff_first_seconds
        while True:
            try:
                return self.connect()
            except ConnectError:
                if time.monotonic() + backoff > give_up_at:
                    raise
            time.sleep(backoff)
            backoff = min(backoff * 2, self._options.backoff_max_seconds)

    def close(self) -> None:
        opened, self._socket = self._socket, None
        self._early.clear()
        if opened is not None:
            with suppress(OSError):
                opened.sendall(frame(FrameKind.GOODBYE))
            opened.close()

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
        """Asks and waits; once more on a new connection if the old one is lost. Only for what
        may be asked twice."""
        return decode(answer, self.ask_raw(kind, msgspec.msgpack.encode(message)))

    def ask_raw(self, kind: FrameKind, payload: bytes) -> bytes:
        try:
            return self.take(self._post(frame(kind, payload, request=self._next_number())))
        except ConnectionLostError:
            self.reconnect()
            return self.take(self._post(frame(kind, payload, request=self._next_number())))

    def ask_at_length(
        self, kind: FrameKind, message: msgspec.Struct, answer: type[T], seconds: float
    ) -> T:
        """Asks for what may take long, and again whenever the connection is lost or silent. Only
        for what may be asked many times. Who can't be reached any more is not waited for."""
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

    def post(self, kind: FrameKind, message: msgspec.Struct) -> int:
        """Sends a request; `take` waits for its answer."""
        return self._post(message_frame(kind, message, request=self._next_number()))

    def post_parts(self, kind: FrameKind, *parts: bytes | memoryview) -> int:
        """The same with a payload in parts, which are not joined."""
        number = self._next_number()
        size = sum(map(len, parts))
        head = bytearray(frame(kind, b"", request=number))
        struct.pack_into("<I", head, 0, FRAME_HEADER_BYTES + size)
        self._send(bytes(head))
        for part in parts:
            self._send(part)
        return number

    def take(self, number: int) -> bytes:
        """The answer to a request; raises what the broker answered instead."""
        while number not in self._early:
            self._receive()
        answer = self._early.pop(number)
        if isinstance(answer, FanlogError):
            raise answer
        return answer

    def _await(self, number: int, give_up_at: float) -> None:
        """Waits until there is an answer, with pings, so that the broker keeps the connection. One
        that does not answer those either is taken for lost."""
        silence_max = self._options.request_timeout_seconds
        idle_max = self.welcome.idle_timeout_seconds
        between = min(self._options.ping_seconds, idle_max / 3, silence_max / 3)
        heard = time.monotonic()
        while number not in self._early:
            if time.monotonic() >= min(heard + silence_max, give_up_at):
                self.close()
                raise self._silence()
            if self._readable(between):
                self._receive()
                heard = time.monotonic()
            else:
                self._send(frame(FrameKind.PING))

    def _readable(self, seconds: float) -> bool:
        opened = self._opened()
        if isinstance(opened, ssl.SSLSocket) and opened.pending():
            return True
        waiting = select.poll()
        waiting.register(opened, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def _silence(self) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"The broker at {self.address} did not answer within "
            f"{self._options.request_timeout_seconds} s. The outcome is unknown."
        )

    def _next_number(self) -> int:
        self._request_number = self._request_number % 0xFFFFFFFF + 1
        return self._request_number

    def _post(self, data: bytes) -> int:
        number = self._request_number
        self._send(data)
        return number

    # Bytes

    def _greeting(self) -> messages.Welcome:
        begin = self._take_bytes(FRAME_HEADER_BYTES)
        check_welcome(begin)
        header, payload = self._frame(begin)
        if header.kind == FrameKind.ERROR:
            raise _failure(payload)
        return decode(messages.Welcome, payload)

    def _receive(self) -> None:
        """Takes one frame. What is no answer does not concern a plain connection."""
        header, payload = self._frame()
        if header.kind in _ANSWERS:
            self._early[header.request] = payload
        elif header.kind == FrameKind.ERROR:
            error = _failure(payload)
            if not header.request:
                self.close()
                raise ConnectionLostError(f"The broker closed the connection: {error}") from error
            self._early[header.request] = error

    def _frame(self, begin: bytes = b"") -> tuple[FrameHeader, bytes]:
        header = read_frame_header(begin or self._take_bytes(FRAME_HEADER_BYTES))
        if header.length < FRAME_HEADER_BYTES:
            raise ProtocolError(f"A frame can't be {header.length} bytes long.")
        size = header.length - FRAME_HEADER_BYTES
        return header, self._take_bytes(size) if size else b""

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
            self.close()
            raise self._silence() from None
        except OSError as fault:
            self.close()
            raise ConnectionLostError(f"The connection to the broker was lost: {fault}.") from fault
        if missing:
            self.close()
            raise ConnectionLostError("The connection to the broker was lost.")
        return b"".join(parts)

    def _send(self, data: bytes | memoryview) -> None:
        opened = self._opened()
        try:
            opened.sendall(data)
        except OSError as fault:
            self.close()
            raise ConnectionLostError(f"The connection to the broker was lost: {fault}.") from fault

    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLostError("There is no connection to the broker.")
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


def _failure(payload: bytes) -> FanlogError:
    failure = decode(messages.ErrorAnswer, payload)
    return from_wire(
        failure.code, failure.message, failure.first, failure.next, failure.retry_after_seconds
    )
