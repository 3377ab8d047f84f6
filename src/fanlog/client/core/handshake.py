"""The start of a connection: the client's HELLO, and the errors without a WELCOME."""

from __future__ import annotations

from fanlog.errors import ConnectError, ConnectionLostError, FanlogError
from fanlog.format import messages
from fanlog.format.frames import (
    MAGIC,
    NATIVE_PORT_HINT,
    PROTOCOL_VERSION,
    FrameKind,
    message_frame,
)
from fanlog.identity import Login


def hello(client: str, login: Login | None = None) -> bytes:
    """The first frame of every connection."""
    greeting = messages.Hello((PROTOCOL_VERSION,), client, login)
    return message_frame(FrameKind.HELLO, greeting, aux=MAGIC)


def no_greeting(peer: str, timeout_seconds: float) -> ConnectError:
    """A server accepts connections there, and does not answer."""
    return ConnectError(
        f"Something listens at {peer}, but it did not greet as a Fanlog broker within "
        f"{timeout_seconds} s. Is it another program, or a broker that is stopped or overloaded? "
        f"{NATIVE_PORT_HINT}"
    )


def not_greeted(peer: str, why: Exception | None) -> ConnectError:
    """Why a connection ended before the broker had greeted."""
    if isinstance(why, ConnectError):
        return why
    if isinstance(why, FanlogError):
        return ConnectError(f"There is no connection to {peer}: {why}")
    return ConnectError(
        f"Something listens at {peer}, but it closed the connection without a greeting. Is it "
        f"another program, or a broker that is stopping? {NATIVE_PORT_HINT}"
    )


def lost_error(why: Exception | None) -> ConnectionLostError:
    """A connection that ended after the greeting."""
    because = f": {why}" if why else "."
    error = ConnectionLostError(f"The connection to the broker was lost{because}")
    error.__cause__ = why
    return error
