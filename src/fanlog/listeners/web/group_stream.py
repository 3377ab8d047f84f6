"""A member of a consumer group over a WebSocket: `/v1/topics/{topic}/stream?group=G&consumer=C`, or
`/v1/groups/{group}/stream?topic=T&consumer=C`.

It is a member like any other, of the client in this process, so that native members, those of other
processes and those over WebSocket share the partitions of one group.

| from the client                                            | meaning                          |
| ---------------------------------------------------------- | -------------------------------- |
| `{"op":"ack","topic":"t","partition":0,"offset":4}`        | done up to this message          |
| `{"op":"commit","positions":{"t/0":"5.1.7"}}`              | the same, with frames' positions |
| `{"op":"token","token":"..."}`                             | a new token of the same user     |
| `{"op":"ping"}`                                            | is the server there              |

| to the client, beside `messages` and `gap`                 | meaning                          |
| ---------------------------------------------------------- | -------------------------------- |
| `{"type":"assigned","partitions":["t/0"]}`                 | these are this member's now      |
| `{"type":"revoked","partitions":["t/0"]}`                  | these are not any more           |

With `commit=auto`, sent messages are committed a second later, if the connection is still open.
Messages sent to a dead client come again. With `commit=manual`, only acked messages are committed.
At most `prefetch` messages, and the rest of a batch, wait for an ack.

It is long because what the client acks, what was sent and what is assigned have to agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
from aiohttp import web
from msgspec import Meta, inspect

from fanlog.client.core.reached import Reached
from fanlog.errors import (
    FanlogError,
    FencedError,
    ForbiddenError,
    InvalidArgumentError,
    UnauthenticatedError,
)
from fanlog.format.web import RenderedRecords, quoted
from fanlog.format.web_frames import text_frame
from fanlog.format.web_positions import parse_positions, print_position
from fanlog.identity import Verb
from fanlog.listeners.faults import OUR_FAULT
from fanlog.listeners.web import operations as ops
from fanlog.listeners.web.connection import WebConnection
from fanlog.listeners.web.entrance import ENDED
from fanlog.listeners.web.login_watch import LoginWatch
from fanlog.listeners.web.request_errors import explained
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.websocket import (
    DISCONNECTED,
    HandshakeError,
    WebSocketStream,
    refusal,
    shake_hands,
    taken,
)
from fanlog.model import Gap, TopicPartition

if TYPE_CHECKING:
    from fanlog.client.aio import Client
    from fanlog.client.groups.member import GroupMember
    from fanlog.client.message import MessageBatch
    from fanlog.listeners.web.entrance import Guest
    from fanlog.listeners.web.listener_port import WebPort

logger = logging.getLogger("fanlog.listeners")

_RECONNECT_CODE = 1012
_FAULT_CODE = 1011
_REFUSED_CODE = 1008
# How often a session checks whether its peer reads again.
_LOOK_SECONDS = 0.02
# With `auto`: how long the connection must last after a message for it to count as done.
_COMMIT_SECONDS = 1.0
# Operations in progress at the same time.
_TASKS_MAX = 64


Consumer = Annotated[
    str,
    Meta(
        max_length=255,
        description="The member's name. A new member with the same name replaces the old one.",
    ),
]
StreamCommitMode = Annotated[
    Literal["auto", "manual"],
    Meta(
        description="auto: a message counts as done one second after it was sent. manual: only "
        "what the client acks counts."
    ),
]
Reset = Annotated[
    str, Meta(description="Where a new group starts: latest, earliest, a time, or an age.")
]
Prefetch = Annotated[
    int, Meta(ge=1, le=100_000, description="With manual: the most messages without an ack.")
]


User = Annotated[
    str,
    Meta(
        max_length=200,
        description="The user's name. Without logins the broker trusts it. With logins, only an"
        " admin may name another user.",
    ),
]
TicketText = Annotated[
    str, Meta(max_length=200, description="A ticket from POST /v1/tickets, instead of a header.")
]


class GroupQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The consumer that joins a group, and its topics."""

    topic: Annotated[str, Meta(min_length=1, description="A topic or a pattern.")]
    consumer: Consumer = ""
    commit: StreamCommitMode = "auto"
    reset: Reset = "latest"
    prefetch: Prefetch = 1000
    user: User = ""
    ticket: TicketText = ""


class Membership(Protocol):
    """The parameters of a request, as far as they say how a member joins a group."""

    @property
    def consumer(self) -> str: ...
    @property
    def commit(self) -> Literal["auto", "manual"]: ...
    @property
    def reset(self) -> str: ...
    @property
    def prefetch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GroupWanted:
    """The group, its topics, and its options."""

    group: str
    topic: str
    how: Membership


class AckOp(
    msgspec.Struct, frozen=True, tag_field="op", tag="ack", kw_only=True, forbid_unknown_fields=True
):
    id: ops.Id = None
    topic: str
    partition: Annotated[int, Meta(ge=0)] = 0
    offset: Annotated[int, Meta(ge=0, lt=(1 << 63) - 1)]


class CommitOp(
    msgspec.Struct,
    frozen=True,
    tag_field="op",
    tag="commit",
    kw_only=True,
    forbid_unknown_fields=True,
):
    id: ops.Id = None
    positions: dict[str, str]


_StreamOperation = AckOp | CommitOp | ops.TokenOp | ops.PingOp
_decode = msgspec.json.Decoder(_StreamOperation).decode
_OPERATIONS = inspect.type_info(_StreamOperation)


class AssignedFrame(msgspec.Struct, frozen=True, tag_field="type", tag="assigned"):
    partitions: list[str]


class RevokedFrame(msgspec.Struct, frozen=True, tag_field="type", tag="revoked"):
    partitions: list[str]


class GroupWelcome(ops.WelcomeFrame, frozen=True, tag_field="type", tag="welcome", kw_only=True):
    group: str
    consumer: str


async def open_group(call: Call[GroupQuery, Any]) -> web.StreamResponse:
    """A member of the group in the path."""
    wanted = GroupWanted(call.path("group"), call.query.topic, call.query)
    return join_group(call, wanted, call.query.user)


def join_group(call: Call[Any, Any], wanted: GroupWanted, user: str) -> web.StreamResponse:
    """Makes the connection a member of a group, or answers with an error."""
    listener, request = call.listener, call.request
    peer = listener.peer_of(request)
    guest = call.guest
    guest.act_for(user)
    permit = guest.permit
    permit.ask(Verb.SUBSCRIBE, wanted.topic)
    permit.ask(Verb.GROUP, wanted.group)
    connection = WebConnection(listener, peer)
    session = GroupSession(listener, connection, call.client, wanted, guest)
    try:
        agreed = shake_hands(request)
    except HandshakeError as fault:
        return refusal(fault)
    session.protocol = WebSocketStream(connection, listener.options, session, listener.loop.time())
    connection.belong_to(guest.who.account)
    try:
        listener.take_over(request, connection, session.protocol, agreed.head)
    except BaseException:
        connection.belong_to(None)
        raise
    session.start()
    return taken()


class GroupSession:
    """One member on one WebSocket. It leaves its group when the connection is closed."""

    transport = "websocket"

    def __init__(
        self,
        listener: WebPort,
        connection: WebConnection,
        client: Client,
        wanted: GroupWanted,
        guest: Guest,
    ) -> None:
        self.listener = listener
        self.connection = connection
        self.id = secrets.token_hex(8)
        self.guest = guest
        guest.named(self.id)
        self.permit = guest.permit
        self.user = guest.who.user
        self._watch = LoginWatch(listener, guest)
        self.address = connection.peer
        self.since_us = time.time_ns() // 1000
        self.protocol: WebSocketStream
        self._wanted = wanted
        # For each partition: the offset sent, and in which log; and the offset acked.
        self._sent: dict[TopicPartition, Reached] = {}
        self._acked: dict[TopicPartition, int] = {}
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._running: asyncio.Task[None] | None = None
        self._member: GroupMember = client.consume(
            wanted.topic,
            group=wanted.group,
            member=wanted.how.consumer,
            reset=wanted.how.reset,
            commit="manual",
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_gap=self._gap,
        )

    def start(self) -> None:
        """Greets the client, and joins the group."""
        bus = self.listener.bus
        self.listener.connections.add(self)
        welcome = GroupWelcome(
            connection=self.id,
            process=bus.process,
            user=self.user,
            ping_seconds=self.listener.options.ping_seconds,
            bus=bus.name,
            up=bus.up,
            group=self._wanted.group,
            consumer=self._member.member,
        )
        self._say(welcome)
        self._running = self.listener.loop.create_task(self._run())

    # What the member gets

    async def _run(self) -> None:
        code, why = _FAULT_CODE, OUR_FAULT
        committing = None
        if self._wanted.how.commit == "auto":
            committing = self.listener.loop.create_task(self._commit_sent())
        try:
            async for batch in self._member.batches():
                self._send(batch)
                await self._have_room()
            return
        except FanlogError as fault:
            code, why = _REFUSED_CODE, f"{fault.code}: {fault}"
            self._refuse(None, fault)
        except Exception:
            logger.exception("a member of the group %s failed", self._wanted.group)
        finally:
            if committing is not None:
                committing.cancel()
            with contextlib.suppress(FanlogError):
                await self._member.close()
        if not self._closed:
            self.protocol.close(code, why)

    async def _commit_sent(self) -> None:
        before: dict[TopicPartition, Reached] = {}
        done: dict[TopicPartition, Reached] = {}
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            if self.connection.blocked:
                # What waits here has not gone out.
                continue
            due = {p: at for p, at in before.items() if p in self._sent and done.get(p) != at}
            before = dict(self._sent)
            if due:
                with contextlib.suppress(FanlogError):
                    await self._member.commit_reached(due)
                    done.update(due)

    async def _have_room(self) -> None:
        """Waits until the socket is free, and enough messages are acked."""
        while self.connection.blocked:  # noqa: ASYNC110 - the broker resumes its own readers only
            await asyncio.sleep(_LOOK_SECONDS)
        while self._wanted.how.commit == "manual" and self._unacked() >= self._wanted.how.prefetch:
            self._room.clear()
            await self._room.wait()

    def _unacked(self) -> int:
        return sum(sent.offset - self._acked[tp] for tp, sent in self._sent.items())

    def _send(self, batch: MessageBatch) -> None:
        header, tp = batch.batch.header, TopicPartition(batch.topic, batch.partition)
        first, last = batch.base_offset, batch.next_offset
        before = self._sent.get(tp)
        if before is None or before.offset > first:
            self._acked[tp] = first
        self._sent[tp] = Reached(last, header.leader_epoch, header.topic)
        shown = ",".join(RenderedRecords(batch.batch).messages[batch.first :])
        position = print_position(last, header.leader_epoch, header.topic)
        frame = (
            f'{{"type":"messages","target":{quoted(self._wanted.topic)},'
            f'"topic":{quoted(batch.topic)},"partition":{batch.partition},'
            f'"position":"{position}","messages":[{shown}]}}'
        )
        self.connection.tell(text_frame(frame.encode()))

    def _assigned(self, tps: tuple[TopicPartition, ...]) -> None:
        self._say(AssignedFrame([_named(tp) for tp in tps]))

    async def _revoked(self, tps: tuple[TopicPartition, ...]) -> None:
        sent = {tp: self._sent.pop(tp) for tp in tps if tp in self._sent}
        for tp in sent:
            del self._acked[tp]
        self._room.set()
        # Messages waiting here were not sent: the next member gets them, too.
        gone_out = not self._closed and not self.connection.blocked
        if sent and self._wanted.how.commit == "auto" and gone_out:
            with contextlib.suppress(FanlogError):
                await self._member.commit_reached(sent)
        self._say(RevokedFrame([_named(tp) for tp in tps]))

    def _gap(self, gap: Gap) -> None:
        self._say(
            ops.GapFrame(
                target=self._wanted.topic,
                topic=gap.topic,
                partition=gap.partition,
                begin=str(gap.first),
                end=str(gap.next),
                reason=gap.reason.value,
            )
        )

    def _say(self, frame: msgspec.Struct) -> None:
        if not self._closed:
            self.connection.tell(text_frame(ops.encode(frame)))

    # What the client says

    def hear(self, data: bytes) -> None:
        try:
            operation = _decode(data)
        except msgspec.ValidationError as fault:
            what = explained(fault, _OPERATIONS, ops.name_of(data))
            problem = InvalidArgumentError(f"The operation is invalid: {what}.")
            self._refuse(ops.id_of(data), problem)
            return
        except (msgspec.DecodeError, RecursionError) as fault:
            self._refuse(None, InvalidArgumentError(f"This is not a JSON object: {fault}."))
            return
        if isinstance(operation, ops.PingOp):
            self._answer(operation.id)
            return
        if isinstance(operation, ops.TokenOp):
            doing = self._log_in(operation)
        else:
            doing = self._commit(operation)
        task = self.listener.loop.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._did)

    async def _log_in(self, operation: ops.TokenOp) -> None:
        try:
            await self.listener.entrance.login_again(self.guest, operation.token)
        except FanlogError as fault:
            self._refuse(operation.id, fault)
            return
        self._answer(operation.id, self._watch.logged_in())
        self.recheck()

    def _did(self, task: asyncio.Task[None]) -> None:
        was_busy = self.is_busy()
        self._tasks.discard(task)
        if was_busy and not self._closed:
            self.connection.resume()

    async def _commit(self, operation: AckOp | CommitOp) -> None:
        try:
            reached = self._reached(operation)
            await self._member.commit_reached(reached)
        except FanlogError as fault:
            self._refuse(operation.id, fault)
            return
        except Exception:
            logger.exception("a commit of the group %s failed", self._wanted.group)
            self._refuse(operation.id, FanlogError(OUR_FAULT))
            return
        for tp, at in reached.items():
            if tp in self._acked:
                self._acked[tp] = max(self._acked[tp], at.offset)
        self._room.set()
        self._answer(operation.id)

    def _reached(self, operation: AckOp | CommitOp) -> dict[TopicPartition, Reached]:
        if isinstance(operation, AckOp):
            tp = TopicPartition(operation.topic, operation.partition)
            sent = self._sent_of(tp, operation.offset + 1)
            return {tp: Reached(operation.offset + 1, sent.epoch, sent.number)}
        found: dict[TopicPartition, Reached] = {}
        for position in parse_positions(operation.positions):
            tp = TopicPartition(position.topic, position.partition)
            self._sent_of(tp, position.offset)
            found[tp] = Reached(position.offset, position.epoch, position.number)
        if not found:
            raise InvalidArgumentError('Give positions: {"topic/partition": "position"}.')
        return found

    def _sent_of(self, tp: TopicPartition, offset: int) -> Reached:
        """The sent range of a partition. An ack beyond it is refused."""
        sent = self._sent.get(tp)
        if sent is None:
            raise FencedError(
                f"{_named(tp)} is not this consumer's, or nothing was sent of it since it is. "
                "Nothing was committed."
            )
        if offset > sent.offset:
            raise InvalidArgumentError(
                f"{_named(tp)} was sent up to offset {sent.offset - 1} only: commit what came."
            )
        return sent

    def _answer(self, id: ops.Id, ok: msgspec.Struct = ops.NOTHING) -> None:
        if not self._closed:
            self.connection.write(text_frame(ops.answer(id, ok)))

    def _refuse(self, id: ops.Id, error: FanlogError) -> None:
        if not self._closed:
            self.connection.write(text_frame(ops.refusal(id, error)))

    def is_busy(self) -> bool:
        return len(self._tasks) >= _TASKS_MAX

    def upstream(self, up: bool) -> None:
        """An edge has lost its broker, or found it again. The member returns by itself."""
        self._say(ops.UpstreamFrame(up=up))

    def recheck(self) -> None:
        """Permissions have changed: who may not be a member any more leaves."""
        if self._closed:
            return
        if not self.guest.renew():
            self.connection.evict(UnauthenticatedError(ENDED))
            return
        wanted, permit = self._wanted, self.permit
        for verb, name in ((Verb.SUBSCRIBE, wanted.topic), (Verb.GROUP, wanted.group)):
            refusal = permit.maybe_refusal(verb, name)
            if refusal is not None:
                self._refuse(None, refusal)
                self.connection.evict(refusal)
                return

    def ticked(self, now: float) -> None:
        match self._watch.look():
            case "over":
                self.recheck()
            case "ends":
                self._say(self._watch.frame())
            case _:
                pass

    # The end

    def drained(self, after_ms: int, reason: str = "draining") -> None:
        """Asks the client to reconnect elsewhere. Its partitions go to others."""
        frame = ops.ReconnectFrame(after_ms=after_ms, reason=reason)
        self.protocol.close(_RECONNECT_CODE, reason, text_frame(ops.encode(frame)))

    def subscriptions(self) -> list[str]:
        """The subscribed targets."""
        return [self._wanted.topic]

    def disconnect(self, reason: str, *, reconnect: bool) -> None:
        """The server API ends the connection."""
        if reconnect:
            self.drained(0, reason)
        else:
            self.protocol.close(DISCONNECTED, reason)

    def closed(self) -> None:
        self._closed = True
        self.listener.connections.remove(self)
        if self._running is not None:
            self._running.cancel()


def _named(tp: TopicPartition) -> str:
    return f"{tp[0]}/{tp[1]}"


ROUTES = [
    Route(
        "GET",
        "/v1/groups/{group}/stream",
        open_group,
        "Join a group on a WebSocket",
        "groups",
        query=GroupQuery,
        status=101,
        errors=(InvalidArgumentError, ForbiddenError),
    ),
]
