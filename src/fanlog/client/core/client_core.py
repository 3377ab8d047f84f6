"""One client's conversation with a broker, over one connection after the other, without I/O.

A shell opens the transport, hands in bytes and times, writes the bytes that it is given, and acts
on the events. The asyncio client, the embedded one and the blocking connection of Spark's tasks are
such shells. A shell goes through these steps:

    dial, (open the transport), greet, feed ... Welcomed, (bring back what was there), resumed,
    feed ..., lose, dial ... close
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fanlog.client.core.events import (
    Answered,
    BrokerEventReader,
    Draining,
    Event,
    RequestFailed,
    Welcomed,
)
from fanlog.client.core.handshake import hello, lost_error, not_greeted
from fanlog.client.core.requests import RequestTable, RequestWaiter
from fanlog.client.core.states import (
    CONVERSING,
    HEARING,
    ConnectionChange,
    ConnectionState,
    next_state,
)
from fanlog.client.core.timing import Heartbeat
from fanlog.config import ClientOptions
from fanlog.errors import ConnectionLostError, FanlogError, ProtocolError
from fanlog.format.codecs import UnpackLimits
from fanlog.format.frames import FrameKind, frame, frame_head, message_frame
from fanlog.format.messages import Welcome
from fanlog.identity import Login

# A broker that did not answer this many pings counts as silent.
_PINGS_UNANSWERED_MAX = 3


class ClientCore:
    """`state` decides which changes are possible now (`states.py`). `closed` is the reason why the
    client does not connect again."""

    def __init__(self, options: ClientOptions, *, verify: bool = True) -> None:
        self._name = options.name
        self._verify = verify
        self._limits = UnpackLimits(options.batch_unpacked_bytes_max)
        self._reader = BrokerEventReader(verify=verify, limits=self._limits)
        self._farewell: FanlogError | None = None
        self._lost_because: Exception | None = None
        self.state = ConnectionState.NEW
        self.requests = RequestTable()
        self.heartbeat = Heartbeat(
            options.ping_seconds, _PINGS_UNANSWERED_MAX * options.ping_seconds
        )
        self.welcome: Welcome | None = None
        self.closed: FanlogError | None = None

    # The connection

    def dial(self) -> None:
        """Begins a new connection."""
        if self.closed is not None:
            raise self.closed
        self._change(ConnectionChange.DIAL)
        self._reader = BrokerEventReader(verify=self._verify, limits=self._limits)
        self._farewell = None

    def greet(self, login: Login | None, now: float) -> bytes:
        """The transport is open: the first bytes to send."""
        if self.closed is not None:
            raise self.closed
        self._change(ConnectionChange.GREET)
        self.heartbeat.start(now)
        return hello(self._name, login)

    def resumed(self) -> None:
        """The state of the last connection is restored: requests may be sent now."""
        if self.state not in CONVERSING:
            raise self.closed or self.lost_error()
        self._change(ConnectionChange.RESUME)

    def lose(self, why: Exception | None, peer: str = "the broker") -> FanlogError:
        """The connection is gone, or given up. Fails all requests on it. Returns the error for
        callers that wait for the connection."""
        before = self.state
        self._change(ConnectionChange.LOSE)
        if before in (ConnectionState.LOST, ConnectionState.CLOSED):
            return self.lost_error()
        self._lost_because = self._farewell or why
        self.requests.fail_all(self.lost_error())
        if before in CONVERSING:
            return self.lost_error()
        return self._farewell or not_greeted(peer, why)

    def lost_error(self) -> ConnectionLostError:
        """The reason why there is no connection."""
        return lost_error(self._lost_because)

    def close(self, error: FanlogError) -> None:
        """Closes the client; every later call gets `error`."""
        if self.closed is None:
            self.closed = error
            self._change(ConnectionChange.CLOSE)
            self.requests.fail_all(error)

    def _change(self, change: ConnectionChange) -> None:
        self.state = next_state(self.state, change)

    # Bytes in

    def feed(self, data: bytes, now: float) -> Iterator[Event]:
        """The events in received bytes, except answers, which go to their requests. Raises
        FormatError for frames that no broker sends, or not now."""
        self.heartbeat.heard(now)
        for event in self._reader.feed(data):
            # The handler of the last event may have ended the connection.
            if self.state not in HEARING:
                return
            if self.state is _GREETING:
                _check_greeting(event)
            if type(event) not in _HANDLED_HERE or self._handle(event):
                yield event

    def payload_bytes(self, head: bytes) -> int:
        """The bytes that follow the first 16 of a frame, for a shell that takes whole frames."""
        return self._reader.payload_bytes(head)

    def feed_frame(self, head: bytes, payload: bytes, now: float) -> Event | None:
        """`feed` of one whole frame, whose payload is not copied."""
        self.heartbeat.heard(now)
        event = self._reader.read_frame(head, payload)
        if event is None:
            return None
        if self.state is _GREETING:
            _check_greeting(event)
        return event if type(event) not in _HANDLED_HERE or self._handle(event) else None

    def _handle(self, event: Event) -> bool:
        """Handles an event in the core. True if it is for the shell as well."""
        if type(event) is Answered:
            # Before all others: it is what most of them are.
            self.requests.answered(*event)
            return False
        match event:
            case RequestFailed(number, error) if number:
                self.requests.failed(number, error)
                return False
            case RequestFailed(_, error):
                self._farewell = error
            case Welcomed(welcome):
                if self.state is not _GREETING:
                    raise ProtocolError("The broker greeted twice.")
                self._change(ConnectionChange.WELCOME)
                self.welcome = welcome
            case Draining():
                self._change(ConnectionChange.DRAIN)
            case _:
                pass
        return True

    # Bytes out

    def ask(
        self,
        kind: FrameKind,
        message: msgspec.Struct | bytes,
        waiter: RequestWaiter,
        *,
        aux: int = 0,
    ) -> tuple[int, bytes]:
        """A request's number, and its bytes. The waiter may be called as they are written: an
        embedded broker answers at once."""
        number = self._begin_request(waiter)
        if isinstance(message, bytes):
            return number, frame(kind, message, request=number, aux=aux)
        return number, message_frame(kind, message, request=number, aux=aux)

    def ask_in_parts(
        self, kind: FrameKind, payload_bytes: int, waiter: RequestWaiter
    ) -> tuple[int, bytes]:
        """A request's number, and the bytes before a payload that the shell sends by itself."""
        number = self._begin_request(waiter)
        return number, frame_head(kind, payload_bytes, request=number)

    def _begin_request(self, waiter: RequestWaiter) -> int:
        if self.state not in CONVERSING:
            # On this connection no answer would ever come.
            raise self.closed or self.lost_error()
        return self.requests.add(waiter)


def _check_greeting(event: Event) -> None:
    if type(event) not in _GREETINGS:
        raise ProtocolError("The broker sent something else before its greeting.")


# A member of an Enum is looked up slowly, and every event asks for this one.
_GREETING = ConnectionState.GREETING
_GREETINGS = frozenset({Welcomed, RequestFailed, Draining})
_HANDLED_HERE = frozenset({Answered, RequestFailed, Welcomed, Draining})
