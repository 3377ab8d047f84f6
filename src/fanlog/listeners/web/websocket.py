"""WebSocket (RFC 6455): the handshake, and frames in. The state machine is that of the `websockets`
package, without its I/O: masks, fragments, control frames, sizes and close codes are checked there.
Frames out are made by the views, whole and shared, and go past it.

There is no compression (permessage-deflate). A frame is rendered once and the same bytes go to
every reader. With the usual sliding window each connection would need bytes of its own, and some
300 KiB of memory. A proxy in front can compress for those who need it.

| close code | when                                                                          |
| ---------- | ----------------------------------------------------------------------------- |
| 1000       | the client closed                                                             |
| 1001       | the server closes                                                             |
| 1002       | a frame breaks the protocol: not masked, a bad opcode, a bad close code       |
| 1003       | a binary message; operations are text                                         |
| 1007       | text that is not UTF-8                                                        |
| 1008       | forbidden, or a limit was reached                                             |
| 1009       | a message larger than web.message_bytes_max                                   |
| 1011       | a fault of the server's own                                                   |
| 1012       | the server drains: connect again, to any process                              |
| 4001       | disconnected by the server API: do not come back                              |
| 4002       | nothing was heard for two ping intervals, or a message stopped half way       |
| 4003       | not logged in, or not any more: connect again with a new key or token         |
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiohttp import HttpVersion11, hdrs, web
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import OPEN, SEND_EOF
from websockets.server import ServerProtocol

from fanlog.errors import FanlogError, ForbiddenError, LimitError, UnauthenticatedError
from fanlog.listeners.login_requests import HELLO_BYTES_MAX
from fanlog.listeners.web.problems import http_problem
from fanlog.listeners.web.rates import Rate

if TYPE_CHECKING:
    from fanlog.config_web import WebOptions
    from fanlog.listeners.web.connection import WebConnection

JSON = "fanlog.json"
BINARY = "fanlog.binary"
DISCONNECTED = 4001
SILENT = 4002
LOGGED_OUT = 4003
# The library logs every connection, at levels of its own.
_quiet = logging.getLogger("fanlog.listeners.websockets")
_quiet.setLevel(logging.CRITICAL)
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16
_PING = b"\x89\x00"
_REASON_BYTES_MAX = 123
# Messages of one client before others get their turn.
_MESSAGES_A_TURN = 32


class HandshakeError(Exception):
    """A request that is no proper WebSocket handshake, with the status of the answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def refusal(fault: HandshakeError) -> web.Response:
    """The answer to a request that is no proper handshake."""
    asked = {"Sec-WebSocket-Version": "13", "Upgrade": "websocket", "Connection": "Upgrade"}
    headers = asked if fault.status == HTTPStatus.UPGRADE_REQUIRED else {}
    return http_problem(fault.status, str(fault), "bad_handshake", **headers)


def taken() -> web.StreamResponse:
    """What a handler returns whose connection is not aiohttp's any more: nobody will see it."""
    return web.Response(status=101)


def wants_websocket(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


class Handshake(NamedTuple):
    """A handshake that is agreed on, and its answer."""

    head: bytes
    binary: bool


def shake_hands(request: web.Request) -> Handshake:
    """Checks a request. Raises HandshakeError if it is no proper handshake."""
    headers = request.headers
    connection = headers.get(hdrs.CONNECTION, "").lower()
    if not wants_websocket(request) or "upgrade" not in [t.strip() for t in connection.split(",")]:
        raise HandshakeError(426, "This needs a WebSocket: connect with ws:// or wss://.")
    if request.version != HttpVersion11:
        raise HandshakeError(400, "A WebSocket begins with a request of HTTP/1.1.")
    if headers.get(hdrs.SEC_WEBSOCKET_VERSION) != "13":
        raise HandshakeError(426, "The version of WebSocket must be 13 (Sec-WebSocket-Version).")
    key = headers.get(hdrs.SEC_WEBSOCKET_KEY, "")
    try:
        if len(base64.b64decode(key.encode(), validate=True)) != _KEY_BYTES:
            raise ValueError(key)
    except ValueError:
        raise HandshakeError(400, "Sec-WebSocket-Key must be 16 bytes in base64.") from None
    offered = [name.strip() for name in headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",")]
    # The first that we speak. Without one it is JSON; a client that wants another one and nothing
    # else closes by itself.
    chosen = next((name for name in offered if name in (JSON, BINARY)), "")
    digest = hashlib.sha1((key + _GUID).encode(), usedforsecurity=False).digest()
    head = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}\r\n"
    )
    if chosen:
        head += f"Sec-WebSocket-Protocol: {chosen}\r\n"
    return Handshake(f"{head}\r\n".encode(), chosen == BINARY)


class Hearer(Protocol):
    """What takes the client's messages."""

    def hear(self, data: bytes) -> None: ...
    def is_busy(self) -> bool: ...
    def drained(self, after_ms: int) -> None: ...
    def upstream(self, *, up: bool) -> None: ...
    def recheck(self) -> None:
        """Permissions have changed."""
        ...

    def ticked(self, now: float) -> None:
        """Once a second."""
        ...

    def closed(self) -> None: ...


class _Nobody:
    """The hearer of a closed WebSocket, so that it and its hearer do not keep each other."""

    def hear(self, data: bytes) -> None: ...
    def is_busy(self) -> bool:
        return False

    def drained(self, after_ms: int) -> None: ...
    def upstream(self, *, up: bool) -> None: ...
    def recheck(self) -> None: ...
    def ticked(self, now: float) -> None: ...
    def closed(self) -> None: ...


_NOBODY = _Nobody()


class WebSocketStream:
    """One WebSocket, and what is half here of it."""

    __slots__ = (
        "_bytes",
        "_connection",
        "_ending",
        "_half_since",
        "_hearer",
        "_held_up",
        "_messages",
        "_options",
        "_part",
        "_part_since",
        "_pending",
        "_pinged",
        "_protocol",
        "_text",
    )

    def __init__(
        self,
        connection: WebConnection,
        options: WebOptions,
        hearer: Hearer,
        now: float,
        *,
        stranger: bool = False,
    ) -> None:
        """A `stranger` has not logged in: see `let_in`."""
        size = options.message_bytes_max
        if stranger:
            size = min(size, HELLO_BYTES_MAX)
        self._protocol = ServerProtocol(state=OPEN, max_size=size, logger=_quiet)
        self._connection = connection
        self._options = options
        self._hearer: Hearer = hearer
        self._messages = Rate(options.messages_per_second_max, now)
        self._bytes = Rate(options.bytes_per_second_max, now)
        # Frames that wait until others had their turn, and what is sent behind them at the end.
        self._pending: deque[Frame] = deque()
        self._ending: bytes | None = None
        # A message that comes in fragments, and since when.
        self._part: bytearray | None = None
        self._part_since: float | None = None
        self._text = True
        self._held_up = False
        self._half_since: float | None = None
        self._pinged = False

    def let_in(self) -> None:
        """The client has logged in: its messages may be as large as others'."""
        self._protocol.max_message_size = self._options.message_bytes_max

    def feed(self, data: bytes) -> None:
        connection, protocol = self._connection, self._protocol
        if data:
            now = connection.heard_at
            self._pinged = False
            protocol.receive_data(data)
            events = protocol.events_received()
            self._pending.extend(event for event in events if isinstance(event, Frame))
            self._whole(bool(events), now)
            self._messages.take(len(events), now)
            self._bytes.take(len(data), now)
            self._send(protocol.data_to_send())
        self._held_up = False
        heard = 0
        while self._pending and not connection.closing:
            if heard >= _MESSAGES_A_TURN or self._hearer.is_busy() or connection.full():
                break
            self._frame(self._pending.popleft())
            heard += 1
        self._resume_later(heard)

    def _resume_later(self, heard: int) -> None:
        """Sees to it that what could not be done now is done later."""
        connection = self._connection
        if self._pending:
            self._held_up = True
            if heard >= _MESSAGES_A_TURN:
                connection.soon(connection.resume)
        elif self._ending is not None:
            connection.finish(self._why(), self._ending)
        elif not connection.closing:
            now = connection.heard_at
            wait = max(self._messages.wait_seconds(now), self._bytes.wait_seconds(now))
            if wait > 0:
                self._held_up = True
                connection.later(wait, connection.resume)

    def _send(self, writes: list[bytes]) -> None:
        """What the protocol answers by itself: pongs, and the close frame."""
        if not writes:
            return
        if writes[-1] == SEND_EOF:
            self._ending = b"".join(writes)
        else:
            self._connection.write(b"".join(writes))

    def _whole(self, whole: bool, now: float) -> None:
        """Notes since when a frame is half here."""
        if whole:
            self._half_since = now if self._protocol.reader.buffer else None
        elif self._half_since is None:
            self._half_since = now

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            self._text = frame.opcode is Opcode.TEXT
            if frame.fin:
                self._message(bytes(frame.data))
            else:
                self._part = bytearray(frame.data)
                self._part_since = self._connection.heard_at
        elif frame.opcode is Opcode.CONT and self._part is not None:
            self._part += frame.data
            if frame.fin:
                whole, self._part = bytes(self._part), None
                self._part_since = None
                self._message(whole)

    def _message(self, data: bytes) -> None:
        if not self._text:
            self.close(CloseCode.UNSUPPORTED_DATA, "Operations are text, also with fanlog.binary.")
            return
        try:
            data.decode()
        except UnicodeDecodeError as fault:
            self.close(CloseCode.INVALID_DATA, f"{fault.reason} at position {fault.start}")
            return
        self._hearer.hear(data)

    def held_up(self) -> bool:
        return self._held_up

    def swept(self, now: float) -> None:
        connection = self._connection
        self._hearer.ticked(now)
        if connection.closing:
            return
        if (self._pinged and connection.is_silent(now)) or connection.is_stalled(now):
            self.close(SILENT, "Nothing was heard for two ping intervals.")
        elif self._drags_on(now):
            self.close(SILENT, "A message did not come whole within web.body_timeout_seconds.")
        elif not self._pinged and now - connection.heard_at > self._options.ping_seconds:
            self._pinged = True
            connection.write(_PING)

    def _drags_on(self, now: float) -> bool:
        """Whether a message is half here for too long, however it drips in."""
        limit = self._options.body_timeout_seconds
        since = min(self._half_since or now, self._part_since or now)
        return now - since > limit and not self._connection.paused

    def farewell(self, error: FanlogError) -> bytes:
        return self._close_frame(close_code(error), str(error))

    def close(self, code: int, reason: str, before: bytes = b"") -> None:
        """Ends the connection with a close code, after a last word."""
        frame = self._close_frame(code, reason)
        self._connection.finish(f"closed with {code}: {reason}", before + frame)

    def _close_frame(self, code: int, reason: str) -> bytes:
        protocol = self._protocol
        if protocol.state is not OPEN:
            return self._ending or b""
        short = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
        protocol.send_close(code, short)
        return b"".join(protocol.data_to_send())

    def _why(self) -> str:
        fault = self._protocol.parser_exc
        closed: Close | None = self._protocol.close_sent
        code = "" if closed is None else f" with {closed.code}"
        return f"closed{code}: {fault or 'the client closed'}"

    def drain(self, after_ms: int) -> None:
        self._hearer.drained(after_ms)

    def upstream(self, *, up: bool) -> None:
        self._hearer.upstream(up=up)

    def recheck(self) -> None:
        self._hearer.recheck()

    def closed(self) -> None:
        self._pending.clear()
        hearer, self._hearer = self._hearer, _NOBODY
        hearer.closed()


def close_code(error: FanlogError) -> int:
    """The close code for an error that ends a connection."""
    if isinstance(error, UnauthenticatedError):
        return LOGGED_OUT
    if isinstance(error, ForbiddenError | LimitError):
        return CloseCode.POLICY_VIOLATION
    return CloseCode.INTERNAL_ERROR
