"""One client's conversation over a WebSocket: operations in, answers and frames out. It is long
because each operation is a method with its checks, and they share who the client is."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fanlog.errors import (
    DrainingError,
    FanlogError,
    InvalidArgumentError,
    LimitError,
    UnauthenticatedError,
    allow_more,
)
from fanlog.format.web import reply_json
from fanlog.format.web_filters import make_filter
from fanlog.format.web_frames import text_frame
from fanlog.format.web_positions import parse_positions, print_position, print_positions
from fanlog.identity import Verb
from fanlog.listeners.faults import OUR_FAULT
from fanlog.listeners.web import operations as ops
from fanlog.listeners.web.audited import publish_as
from fanlog.listeners.web.connection_presence import ConnectionPresence, Wish
from fanlog.listeners.web.entrance import ENDED
from fanlog.listeners.web.following import (
    FollowedSubscription,
    Following,
    Key,
    WantedSubscription,
    read_before,
    read_start,
)
from fanlog.listeners.web.history import read_history
from fanlog.listeners.web.login_watch import LoginWatch
from fanlog.listeners.web.ports import MessageToPublish, Published
from fanlog.listeners.web.publish_limits import charge_stream
from fanlog.listeners.web.reader_events import JsonReader
from fanlog.listeners.web.request_errors import explained
from fanlog.listeners.web.user_topics import user_topic as topic_of_user
from fanlog.listeners.web.websocket import DISCONNECTED, WebSocketStream

if TYPE_CHECKING:
    from fanlog.format.web import OutgoingMessage
    from fanlog.format.web_views import ViewKind
    from fanlog.listeners.web.connection import WebConnection
    from fanlog.listeners.web.entrance import Guest
    from fanlog.listeners.web.listener_port import WebPort
    from fanlog.listeners.web.presence import PresenceEvent

logger = logging.getLogger("fanlog.listeners")

# The connection's own user, as a target.
OWN_USER = "$user"
_RECONNECT_CODE = 1012


class WebSession:
    """A client with a name. It lives as long as its WebSocket. It has many fields, because one
    connection may subscribe, publish, ask and be present, in any order."""

    transport = "websocket"

    def __init__(
        self, listener: WebPort, connection: WebConnection, guest: Guest, *, binary: bool
    ) -> None:
        self.listener = listener
        self.bus = listener.bus
        self.connection = connection
        self.id = secrets.token_hex(8)
        self.address = connection.peer
        self.since_us = time.time_ns() // 1000
        self.binary = binary
        self.guest = guest
        guest.named(self.id)
        self.permit = guest.permit
        self.following = Following(listener, connection, self.permit)
        self.present = self._make_present()
        self._watch = LoginWatch(listener, guest)
        self._opened_at = listener.loop.time()
        # A login is being checked: later operations wait.
        self._logging_in = False
        self._presence: Wish = False
        # Subscriptions with presence.
        self._seen: set[Key] = set()
        self.protocol: WebSocketStream
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Lock()
        # The tasks that end with the connection.
        self._subscribes: set[asyncio.Task[None]] = set()
        self._first: list[FollowedSubscription] = []
        self._draining: int | None = None
        self._reason = ""
        self._closed = False

    @property
    def user(self) -> str:
        return self.permit.who.user

    def _make_present(self) -> ConnectionPresence:
        return ConnectionPresence(
            self.listener.presence, self.permit, self.id, self.user, self._tell_presence
        )

    # Beginning

    async def begin(self, wanted: Sequence[WantedSubscription], presence: Wish = False) -> None:
        """Adds the subscriptions that the address asks for. Nothing is sent yet, so an error can
        still be answered with a status."""
        self._presence = presence
        if presence:
            for one in wanted:
                self.present.check(one.target, presence)
        kind: ViewKind = "binary" if self.binary else "json"
        for one in wanted:
            chosen = msgspec.structs.replace(one, kind=kind)
            self.following.check(chosen)
            reader = JsonReader(self.bus.core, self.connection, chosen, numbered=self.binary)
            self._first.append(await self.following.begin(chosen, reader, self.user))

    def start(self) -> None:
        """The connection is open. The greeting waits for the login, if one is needed."""
        if not self.guest.logged_in:
            limit = self.listener.entrance.security.login_timeout_seconds
            self.connection.write(text_frame(ops.encode(ops.LoginFrame(seconds=limit))))
            return
        self._greet()
        # Permissions may have changed meanwhile.
        self.recheck()

    def _greet(self) -> None:
        bus = self.bus
        self.listener.connections.add(self)
        welcome = ops.WelcomeFrame(
            connection=self.id,
            process=bus.process,
            user=self.user,
            ping_seconds=self.listener.options.ping_seconds,
            bus=bus.name,
            up=bus.up,
        )
        self.connection.write(text_frame(ops.encode(welcome)))
        first, self._first = self._first, []
        for followed in first:
            self._tell_begin(None, followed)
            self.following.start(followed)
            if self._closed:
                # Its notices were too large.
                return
            if self._presence:
                try:
                    self._begin_presence(followed.wanted, self._presence)
                except FanlogError as fault:
                    self.refuse(None, fault)

    # What the client says

    def hear(self, data: bytes) -> None:
        """Handles an operation. Its error is its answer."""
        try:
            operation = ops.decode_operation(data)
        except msgspec.ValidationError as fault:
            what = explained(fault, ops.OPERATIONS, ops.name_of(data))
            problem = InvalidArgumentError(f"The operation is invalid: {what}.")
            self.refuse(ops.id_of(data), problem)
            return
        except (msgspec.DecodeError, RecursionError) as fault:
            self.refuse(None, InvalidArgumentError(f"This is not a JSON object: {fault}."))
            return
        try:
            if self._draining is not None:
                raise DrainingError("The server drains: connect again, and repeat the operation.")
            if not self.guest.logged_in and type(operation) not in _BEFORE_LOGIN:
                raise UnauthenticatedError(
                    'Log in first: {"op": "token", "token": "..."} with a key or a token.'
                )
            HANDLERS[type(operation)](self, operation)
        except FanlogError as fault:
            self.refuse(operation.id, fault)

    def is_busy(self) -> bool:
        """Whether too many operations are under way to accept more."""
        return self._logging_in or len(self._tasks) >= self.listener.options.requests_max

    def answer(self, id: ops.Id, ok: Any = ops.NOTHING) -> None:
        self.connection.write(text_frame(ops.answer(id, ok)))

    def refuse(self, id: ops.Id, error: FanlogError) -> None:
        self.connection.write(text_frame(ops.refusal(id, error)))

    def later(self, id: ops.Id, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Answers from a task."""

        async def run() -> None:
            try:
                await work
            except FanlogError as fault:
                self.refuse(id, fault)
            except Exception:
                logger.exception("an operation of %s failed", self.address)
                self.refuse(id, FanlogError(OUR_FAULT))

        def ended(task: asyncio.Task[None]) -> None:
            was_busy = self.is_busy()
            self._tasks.discard(task)
            # A task cancelled before its start has not released it.
            work.close()
            if self._draining is not None and not self._tasks:
                self._leave()
            elif was_busy and not self._closed:
                self.connection.resume()

        task = self.listener.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    # Subscriptions

    def subscribe(self, op: ops.SubscribeOp) -> None:
        start, partitions = read_start(op.start)
        wanted = WantedSubscription(
            target=self.target_of(op.target),
            kind="binary" if self.binary else "json",
            start=start,
            partitions=partitions,
            positions=None if op.positions is None else parse_positions(op.positions),
            filter=make_filter(op.filter),
            latest=op.latest,
            missing=op.missing,
            policy=op.policy,
        )
        if op.presence:
            self.present.check(wanted.target, op.presence)
        self.following.check(wanted)
        task = self.later(op.id, self._subscribing(op, wanted))
        self._subscribes.add(task)
        task.add_done_callback(self._subscribes.discard)

    async def _subscribing(self, op: ops.SubscribeOp, wanted: WantedSubscription) -> None:
        reader = JsonReader(self.bus.core, self.connection, wanted, numbered=self.binary)
        followed = await self.following.begin(wanted, reader, self.user)
        try:
            # Permissions may have changed while it began.
            self.permit.ask(Verb.SUBSCRIBE, wanted.target)
        except FanlogError:
            self.following.end(wanted.key)
            raise
        if op.presence:
            self._begin_presence(wanted, op.presence)
        self._tell_begin(op.id, followed)
        self.following.start(followed)

    def _begin_presence(self, wanted: WantedSubscription, presence: Wish) -> None:
        try:
            self.present.begin(wanted.target, presence)
        except FanlogError:
            self.following.end(wanted.key)
            raise
        self._seen.add(wanted.key)

    def _tell_presence(self, event: PresenceEvent) -> None:
        self.connection.tell(event.rendered("websocket", text_frame))

    def _end(self, key: Key) -> bool:
        """Ends a subscription; whether there was one."""
        if key in self._seen:
            self._seen.discard(key)
            self.present.end(key[0])
        return self.following.end(key)

    def _tell_begin(self, id: ops.Id, followed: FollowedSubscription) -> None:
        target, filter_text = followed.wanted.key
        self.answer(
            id,
            ops.SubscribedAnswer(
                target=target,
                filter=filter_text,
                positions=print_positions(followed.positions()),
                numbers=followed.numbers() if self.binary else {},
            ),
        )

    def target_of(self, target: str) -> str:
        return own_topic(target, self.user, self.listener.options.user_topic)

    def unsubscribe(self, op: ops.UnsubscribeOp) -> None:
        target, chosen = self.target_of(op.target), make_filter(op.filter)
        if not self._end((target, "" if chosen is None else chosen.text)):
            raise InvalidArgumentError(
                f"This connection does not follow {target!r} with that filter."
            )
        self.answer(op.id, {"target": target})

    # Messages

    def publish(self, op: ops.PublishOp) -> None:
        topic = self.target_of(op.topic)
        self.permit.ask(Verb.PUBLISH, topic)
        if op.messages is not None and (not op.messages or not op.is_empty()):
            raise InvalidArgumentError(
                "Publish one message, or `messages` with at least one; not both."
            )
        given = [op] if op.messages is None else op.messages
        messages = [_outgoing(message) for message in given]
        charge_stream(self.bus, self.permit, self.connection, topic, messages)
        self.later(op.id, self._publishing(op, topic, messages))

    async def _publishing(
        self, op: ops.PublishOp, topic: str, messages: list[MessageToPublish]
    ) -> None:
        who = self.permit.who
        stored = await publish_as(who, self.bus, topic, messages, dedupe=op.dedupe)
        published = [self._published(one) for one in stored]
        self.answer(op.id, ops.PublishedMessages(published))

    def _published(self, one: Published) -> ops.PublishedAt:
        position = one.position
        if not position:
            topic = self.bus.core.catalog.find(one.topic)
            number = 0 if topic is None else topic.number
            position = print_position(one.offset + 1, self.bus.core.epoch, number)
        return ops.PublishedAt(one.topic, one.partition, one.offset, position)

    def request(self, op: ops.RequestOp) -> None:
        topic = self.target_of(op.topic)
        self.permit.ask(Verb.PUBLISH, topic)
        longest = self.listener.options.wait_seconds_max
        if op.timeout_seconds > longest:
            raise LimitError(
                f"A request waits at most {longest} s. " + allow_more("web.wait_seconds_max")
            )
        message = _outgoing(op)
        charge_stream(self.bus, self.permit, self.connection, topic, [message])
        self.later(op.id, self._requesting(op, topic, message))

    async def _requesting(self, op: ops.RequestOp, topic: str, message: MessageToPublish) -> None:
        answer = await self.bus.request(topic, message, op.timeout_seconds)
        self.answer(op.id, msgspec.Raw(reply_json(answer.value, answer.headers)))

    def who_is_there(self, op: ops.PresenceOp) -> None:
        self.answer(op.id, self.present.of(self.target_of(op.topic)))

    def history(self, op: ops.HistoryOp) -> None:
        topic = self.target_of(op.topic)
        self.permit.ask(Verb.SUBSCRIBE, topic)
        before, limit = read_before(op.before), self.listener.options.read_messages_max
        self.later(op.id, self._reading_back(op, topic, before, min(op.limit, limit)))

    async def _reading_back(
        self, op: ops.HistoryOp, topic: str, before: int | None, limit: int
    ) -> None:
        size = self.listener.options.message_bytes_max
        # These answers are large: each is made when the client is ready for it.
        async with self._reading:
            await self.connection.writable()
            found = await read_history(self.bus, (topic, op.partition), before, limit, size)
            self.answer(op.id, found)

    # The connection itself

    def ping(self, op: ops.PingOp) -> None:
        self.answer(op.id)

    def renew(self, op: ops.TokenOp) -> None:
        """Logs in, or renews the token. Later operations wait until it is checked."""
        self._logging_in = True
        self.later(op.id, self._logging(op)).add_done_callback(self._logged)

    def _logged(self, task: asyncio.Task[None]) -> None:
        self._logging_in = False
        if not self._closed:
            self.connection.resume()

    async def _logging(self, op: ops.TokenOp) -> None:
        guest = self.guest
        first = not guest.logged_in
        await self.listener.entrance.login_again(guest, op.token)
        if self._closed:
            return
        if first:
            self.protocol.let_in()
            self.present = self._make_present()
        else:
            self._end_forbidden()
        self.answer(op.id, self._watch.logged_in())
        if first:
            self._greet()

    def recheck(self) -> None:
        """Permissions have changed: closes the connection if its login is no longer valid, and ends
        subscriptions that it may no longer read."""
        if self._closed or not self.guest.logged_in:
            return
        if not self.guest.renew():
            self.connection.evict(UnauthenticatedError(ENDED))
            return
        self._end_forbidden()

    def ticked(self, now: float) -> None:
        """Closes the connection without a login in time, or with an expired one. Sends a notice
        before the login expires."""
        if not self.guest.logged_in:
            limit = self.listener.entrance.security.login_timeout_seconds
            if now - self._opened_at > limit and not self._logging_in:
                self.connection.evict(UnauthenticatedError(f"There was no login within {limit} s."))
            return
        match self._watch.look():
            case "over":
                self.recheck()
            case "ends":
                self.connection.tell(text_frame(ops.encode(self._watch.frame())))
            case _:
                pass

    def _end_forbidden(self) -> None:
        if not self.permit.guarded:
            return
        for key in self.following.forbidden():
            self._end(key)
            error = ops.OperationFault("forbidden", f"{key[0]!r} may not be read any more.")
            frame = ops.EndedFrame(target=key[0], filter=key[1], error=error)
            self.connection.tell(text_frame(ops.encode(frame)))
        for key in [key for key in self._seen if not self.permit.may(Verb.PRESENCE, key[0])]:
            self._seen.discard(key)
            self.present.end(key[0])

    def subscriptions(self) -> list[str]:
        """The subscribed targets."""
        return self.following.targets()

    def disconnect(self, reason: str, *, reconnect: bool) -> None:
        """The server API ends the connection."""
        if reconnect:
            self.drained(0, reason)
        else:
            self.protocol.close(DISCONNECTED, reason)

    def upstream(self, *, up: bool) -> None:
        self.connection.tell(text_frame(ops.encode(ops.UpstreamFrame(up=up))))

    def drained(self, after_ms: int, reason: str = "draining") -> None:
        """Answers running operations, then asks the client to reconnect elsewhere."""
        if self._draining is None:
            self._draining = after_ms
            self._reason = reason
            if not self._tasks:
                self._leave()

    def _leave(self) -> None:
        frame = ops.ReconnectFrame(after_ms=self._draining or 0, reason=self._reason)
        self.protocol.close(_RECONNECT_CODE, self._reason, text_frame(ops.encode(frame)))

    def closed(self) -> None:
        self._closed = True
        # On an edge they may wait for as long as upstream is away.
        for task in self._subscribes:
            task.cancel()
        self.following.close()
        self.present.close()
        self.listener.connections.remove(self)


def own_topic(target: str, user: str, user_topic: str) -> str:
    """The target, or the user's own topic for the short form."""
    if target != OWN_USER:
        return target
    if not user:
        raise InvalidArgumentError(
            "This connection has no user, so there is no topic of its own. Log in, or, without "
            "logins, connect with ?user=."
        )
    # A user named `*` must not read everybody's topic.
    return topic_of_user(user_topic, user)


def _outgoing(message: OutgoingMessage) -> MessageToPublish:
    key, value, headers = message.record()
    return MessageToPublish(value, key, headers or {})


_BEFORE_LOGIN = (ops.TokenOp, ops.PingOp)
HANDLERS: dict[type[Any], Callable[[WebSession, Any], None]] = {
    ops.SubscribeOp: WebSession.subscribe,
    ops.UnsubscribeOp: WebSession.unsubscribe,
    ops.PublishOp: WebSession.publish,
    ops.RequestOp: WebSession.request,
    ops.PresenceOp: WebSession.who_is_there,
    ops.HistoryOp: WebSession.history,
    ops.TokenOp: WebSession.renew,
    ops.PingOp: WebSession.ping,
}
