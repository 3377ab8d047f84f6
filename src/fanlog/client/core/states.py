"""The states of a client's connection, and what may change them, as one table.

Law: nothing else moves a connection from one state to another. A change that the table does not
have is a fault of the program (`IllegalTransitionError`), or of a broker that says something out of
turn, which `ClientCore` reports as a `ProtocolError`.

| state    | meaning                                                                  |
| -------- | ------------------------------------------------------------------------ |
| NEW      | never connected                                                          |
| DIALING  | the transport is being opened                                            |
| GREETING | HELLO is sent, WELCOME has not come                                      |
| RESUMING | welcomed; topics and subscriptions are brought back                      |
| READY    | requests are sent and answered                                           |
| DRAINING | the broker stops: answers still come, new requests wait                  |
| LOST     | there is no connection; another may be dialed                            |
| CLOSED   | for good                                                                 |
"""

from __future__ import annotations

from enum import Enum, auto


class ConnectionState(Enum):
    NEW = auto()
    DIALING = auto()
    GREETING = auto()
    RESUMING = auto()
    READY = auto()
    DRAINING = auto()
    LOST = auto()
    CLOSED = auto()


class ConnectionChange(Enum):
    DIAL = auto()
    GREET = auto()
    WELCOME = auto()
    RESUME = auto()
    DRAIN = auto()
    LOSE = auto()
    CLOSE = auto()


class IllegalTransitionError(RuntimeError):
    """The program asked for a change that its state does not allow."""


_S, _C = ConnectionState, ConnectionChange

TRANSITIONS: dict[ConnectionState, dict[ConnectionChange, ConnectionState]] = {
    _S.NEW: {_C.DIAL: _S.DIALING, _C.LOSE: _S.LOST, _C.CLOSE: _S.CLOSED},
    _S.DIALING: {_C.GREET: _S.GREETING, _C.LOSE: _S.LOST, _C.CLOSE: _S.CLOSED},
    # A broker that stops notifies all its connections, greeted or not.
    _S.GREETING: {
        _C.WELCOME: _S.RESUMING,
        _C.DRAIN: _S.GREETING,
        _C.LOSE: _S.LOST,
        _C.CLOSE: _S.CLOSED,
    },
    _S.RESUMING: {
        _C.RESUME: _S.READY,
        _C.DRAIN: _S.DRAINING,
        _C.LOSE: _S.LOST,
        _C.CLOSE: _S.CLOSED,
    },
    _S.READY: {_C.DRAIN: _S.DRAINING, _C.LOSE: _S.LOST, _C.CLOSE: _S.CLOSED},
    # Resuming may end after the broker has announced its stop.
    _S.DRAINING: {
        _C.RESUME: _S.DRAINING,
        _C.DRAIN: _S.DRAINING,
        _C.LOSE: _S.LOST,
        _C.CLOSE: _S.CLOSED,
    },
    # A loss is often noticed twice: by a failed write, and by the end of the transport.
    _S.LOST: {_C.DIAL: _S.DIALING, _C.LOSE: _S.LOST, _C.CLOSE: _S.CLOSED},
    _S.CLOSED: {_C.LOSE: _S.CLOSED, _C.CLOSE: _S.CLOSED},
}

# The states in which a request can be sent and answered. Tuples: a set would hash names each time.
CONVERSING = (_S.READY, _S.RESUMING, _S.DRAINING)
# The states in which bytes from the broker are processed. In others they are dropped.
HEARING = (*CONVERSING, _S.GREETING)


def next_state(state: ConnectionState, change: ConnectionChange) -> ConnectionState:
    """The state after a change.

    >>> next_state(ConnectionState.GREETING, ConnectionChange.WELCOME).name
    'RESUMING'
    """
    try:
        return TRANSITIONS[state][change]
    except KeyError:
        raise IllegalTransitionError(
            f"{change.name} is not possible in state {state.name}."
        ) from None
