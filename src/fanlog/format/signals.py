"""Signals between the processes of a bus: records of the broker's own topic `_fanlog.signals`. It
lives in memory. The key is the channel. They are live only: a process that is not connected misses
them.

Some are requests to all web listeners, on the channel `web`, as MessagePack arrays: `SignalAsk`
goes to all of them, and each answers with a `SignalAnswer`. It names the processes that it knows
of, so that the asking process knows how many answers to wait for.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.errors import FormatError
from fanlog.model import INTERNAL_PREFIX, ConnectionInfo

SIGNALS_TOPIC = INTERNAL_PREFIX + "signals"
WEB_CHANNEL = "web"

_SignalId = Annotated[str, Meta(min_length=1, max_length=64)]


class SignalAsk(msgspec.Struct, frozen=True, array_like=True, tag="q"):
    """`kind` is the kind of request; the other fields are for some kinds only."""

    id: _SignalId
    kind: Literal["connections", "disconnect", "presence", "topics"]
    user: str | None = None
    connection: str = ""
    topic: str = ""
    reason: str = ""
    reconnect: bool = False
    after: str = ""
    limit: int = 0
    # Connections of all listeners, and not only those that the web listener streams to.
    every: bool = False
    address: str = ""
    listener: str = ""
    requests: bool = False


class SignalAnswer(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """What one process answers. `processes` are all that it knows of."""

    id: _SignalId
    process: _SignalId
    processes: list[str]
    connections: list[ConnectionInfo] = []
    count: int = 0
    presence: bytes = b""
    topics: list[str] = []


encode_web = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(SignalAsk | SignalAnswer)


def decode_web(data: bytes) -> SignalAsk | SignalAnswer:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise FormatError(f"A signal to web listeners does not decode: {fault}.") from fault
