"""What processes tell each other about who is in which topic: MessagePack arrays, each of which
begins with its kind.

| kind | struct         | meaning                                                                 |
| ---- | -------------- | ----------------------------------------------------------------------- |
| d    | `Delta`        | changes of the sender's own connections; `version` counts its deltas    |
| b    | `Beat`         | the sender is there, and has this version. `hello`: it has just come    |
| a    | `PresenceAsk`  | the process `of` is to send what came after `version`; -1: everything   |
| s    | `PresencePart` | part `index` of `parts` of all that the sender has at `version`         |
| e    | `Bye`          | the sender stops                                                        |

Signals get lost, come twice and overtake each other: the versions put them in order.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.errors import FormatError
from fanlog.model import TOPIC_NAME_BYTES_MAX

PROCESS_BYTES_MAX = 64
CONNECTION_BYTES_MAX = 64
USER_BYTES_MAX = 255

_ProcessName = Annotated[str, Meta(min_length=1, max_length=PROCESS_BYTES_MAX)]
_Version = Annotated[int, Meta(ge=-1, lt=1 << 62)]


class PresenceMember(msgspec.Struct, frozen=True, array_like=True):
    """A connection in a topic. `order` tells which of a user's connections came last: it is higher
    than all that its process had heard of, so no clock is compared."""

    user: Annotated[str, Meta(min_length=1, max_length=USER_BYTES_MAX)]
    info: bytes = b""
    order: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0


class PresenceChange(msgspec.Struct, frozen=True, array_like=True):
    """A connection has come, or has other info; without a member, it has gone."""

    topic: Annotated[str, Meta(min_length=1, max_length=TOPIC_NAME_BYTES_MAX)]
    connection: Annotated[str, Meta(min_length=1, max_length=CONNECTION_BYTES_MAX)]
    member: PresenceMember | None = None


class Delta(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    process: _ProcessName
    version: _Version
    changes: list[PresenceChange]


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    process: _ProcessName
    version: _Version
    hello: bool = False


class PresenceAsk(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    process: _ProcessName
    of: _ProcessName
    version: _Version


class PresencePart(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    process: _ProcessName
    version: _Version
    index: Annotated[int, Meta(ge=0)]
    parts: Annotated[int, Meta(ge=1, le=100_000)]
    changes: list[PresenceChange]


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    process: _ProcessName


Signal = Delta | Beat | PresenceAsk | PresencePart | Bye

encode_signal = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Signal)


def decode_signal(data: bytes) -> Signal:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise FormatError(f"A presence signal does not decode: {fault}.") from fault


def is_info(info: bytes, bytes_max: int) -> bool:
    """Whether info is JSON, so that it can stand in a frame as it is, and not too long."""
    if len(info) > bytes_max:
        return False
    try:
        if info:
            msgspec.json.decode(info)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def change_bytes(change: PresenceChange) -> int:
    """About how long a change is, encoded."""
    member = change.member
    size = len(change.topic) + len(change.connection) + 16
    return size if member is None else size + len(member.user) + len(member.info) + 16
