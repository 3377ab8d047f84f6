"""The operations of a WebSocket client, and the frames it gets: JSON, one object in each frame.

| a client's `op` | what it does                       | answer (`ok`)                        |
| --------------- | ---------------------------------- | ------------------------------------ |
| `subscribe`     | follows a topic or a pattern       | `target`, `filter`, `positions`      |
| `unsubscribe`   | ends that                          | `target`                             |
| `publish`       | stores one message or several      | `published`                          |
| `request`       | publishes, and waits for the reply | the reply                            |
| `history`       | reads messages before an offset    | `messages`, `positions`, `before`    |
| `presence`      | says who is in a topic             | `topic`, `count`, `users`            |
| `token`         | logs in, or shows a new token      | `user`, `expires`                    |
| `ping`          | asks whether the server is there   | nothing                              |

Every operation may have an `id`, which stands in its answer: `{"id":1,"ok":{...}}`, or
`{"id":1,"error":{"code":...,"message":...}}`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, inspect

from fanlog.errors import FanlogError
from fanlog.format.web import OutgoingMessage
from fanlog.format.web_filters import FilterSpec
from fanlog.model import SlowPolicy

Id = int | str | None
Missing = Literal["wait", "fail"]


class StartSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin: one of these. `partition` goes with `offset`."""

    offset: Annotated[int, Meta(ge=0)] | None = None
    partition: Annotated[int, Meta(ge=0)] | None = None
    time: str | None = None
    last: Annotated[int, Meta(ge=0)] | None = None


class _Operation(msgspec.Struct, frozen=True, tag_field="op", kw_only=True):
    id: Id = None


class SubscribeOp(_Operation, frozen=True, tag="subscribe", forbid_unknown_fields=True):
    target: str
    start: str | StartSpec = "live"
    positions: dict[str, str] | None = None
    filter: FilterSpec | None = None
    latest: bool = False
    presence: bool | dict[str, Any] = False
    missing: Missing = "wait"
    policy: SlowPolicy = SlowPolicy.CATCH_UP


class UnsubscribeOp(_Operation, frozen=True, tag="unsubscribe", forbid_unknown_fields=True):
    target: str
    filter: FilterSpec | None = None


class PublishOp(
    OutgoingMessage, tag_field="op", tag="publish", kw_only=True, forbid_unknown_fields=True
):
    topic: str
    id: Id = None
    messages: list[OutgoingMessage] | None = None
    dedupe: str = ""


class RequestOp(
    OutgoingMessage, tag_field="op", tag="request", kw_only=True, forbid_unknown_fields=True
):
    topic: str
    id: Id = None
    timeout_seconds: Annotated[float, Meta(gt=0)] = 5.0


class HistoryOp(_Operation, frozen=True, tag="history", forbid_unknown_fields=True):
    topic: str
    partition: Annotated[int, Meta(ge=0)] = 0
    before: str | int | None = None
    limit: Annotated[int, Meta(ge=1)] = 50


class PresenceOp(_Operation, frozen=True, tag="presence", forbid_unknown_fields=True):
    topic: str


class TokenOp(_Operation, frozen=True, tag="token", forbid_unknown_fields=True):
    token: str


class PingOp(_Operation, frozen=True, tag="ping", forbid_unknown_fields=True):
    pass


SocketOperation = (
    SubscribeOp | UnsubscribeOp | PublishOp | RequestOp | HistoryOp | PresenceOp | TokenOp | PingOp
)
decode_operation = msgspec.json.Decoder(SocketOperation).decode
# The existing operations, for errors. Computed once, because anybody can send wrong operations.
OPERATIONS = inspect.type_info(SocketOperation)


class _OnlyId(msgspec.Struct):
    id: Id = None


class _OnlyName(msgspec.Struct):
    op: str = ""


_decode_id = msgspec.json.Decoder(_OnlyId).decode
_decode_name = msgspec.json.Decoder(_OnlyName).decode


def id_of(data: bytes) -> Id:
    """The id of an invalid operation, if it can be read."""
    try:
        return _decode_id(data).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def name_of(data: bytes) -> str:
    """The `op` of an operation that is wrong, or nothing."""
    try:
        return _decode_name(data).op
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


# Frames to the client


class _ServerFrame(msgspec.Struct, frozen=True, tag_field="type", kw_only=True, omit_defaults=True):
    pass


class WelcomeFrame(msgspec.Struct, frozen=True, tag_field="type", tag="welcome", kw_only=True):
    version: int = 1
    connection: str
    process: str
    user: str
    ping_seconds: float
    bus: str
    up: bool


class GapFrame(_ServerFrame, frozen=True, tag="gap", kw_only=True):
    """Messages that will not come: those from `begin` up to `end`."""

    target: str
    filter: str = ""
    topic: str
    partition: int
    begin: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    reason: str


class JoinedFrame(_ServerFrame, frozen=True, tag="joined", kw_only=True):
    """A topic that matches the target was created, or has more partitions."""

    target: str
    filter: str = ""
    topic: str
    positions: dict[str, str]
    numbers: dict[str, str] = {}


class LeftFrame(_ServerFrame, frozen=True, tag="left", kw_only=True):
    """A topic was deleted."""

    target: str
    filter: str = ""
    topic: str


class NoticeFrame(_ServerFrame, frozen=True, tag="notice", kw_only=True):
    """`missing`: the topic does not exist yet; the subscription waits for it. `parent`: a pattern
    such as `a.>` does not include the topic `a`, which exists."""

    target: str
    filter: str = ""
    kind: str
    topic: str


class EndedFrame(_ServerFrame, frozen=True, tag="ended", kw_only=True):
    """The server has ended a subscription."""

    target: str
    filter: str = ""
    error: OperationFault


class LoginFrame(_ServerFrame, frozen=True, tag="login", kw_only=True):
    """The server requires a login, by the operation `token`, within this many seconds."""

    seconds: float


class ExpiringFrame(_ServerFrame, frozen=True, tag="expiring", kw_only=True):
    """The login expires at `expires`, in this many seconds: send a new token before that."""

    expires: str
    seconds: int


class UpstreamFrame(_ServerFrame, frozen=True, tag="upstream", kw_only=True):
    up: bool


class ReconnectFrame(_ServerFrame, frozen=True, tag="reconnect", kw_only=True):
    after_ms: int
    reason: str


class OperationFault(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str


class Answer(msgspec.Struct, frozen=True):
    id: Id
    ok: Any


class PlainAnswer(msgspec.Struct, frozen=True):
    ok: Any


class Refusal(msgspec.Struct, frozen=True):
    id: Id
    error: OperationFault


class PlainRefusal(msgspec.Struct, frozen=True):
    error: OperationFault


class SubscribedAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`positions` are where the subscription begins: they can be handed back as they are."""

    target: str
    filter: str = ""
    positions: dict[str, str]
    numbers: dict[str, str] = {}


class LoggedInAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The client's user, and when the login expires."""

    user: str
    expires: str = ""


class PublishedAt(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    position: str


class PublishedMessages(msgspec.Struct, frozen=True):
    published: list[PublishedAt]


class HistoryPage(msgspec.Struct, frozen=True):
    """Messages in the order of their offsets. `before` is where to continue backwards; null at
    the first message that is kept."""

    messages: list[Raw]
    positions: dict[str, str]
    before: int | None


class EmptyAnswer(msgspec.Struct, frozen=True):
    pass


NOTHING = EmptyAnswer()
encode = msgspec.json.Encoder().encode


def answer(id: Id, ok: Any) -> bytes:
    return encode(PlainAnswer(ok) if id is None else Answer(id, ok))


def refusal(id: Id, error: FanlogError) -> bytes:
    failed = failed_of(error)
    return encode(PlainRefusal(failed) if id is None else Refusal(id, failed))


def failed_of(error: FanlogError) -> OperationFault:
    return OperationFault(error.code, str(error))
