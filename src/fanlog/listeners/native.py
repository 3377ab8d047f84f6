"""The server side of the native protocol: frames in, calls to the broker, frames out. No I/O:
the same session serves a socket and the embedded API. It is long because the hot path
(publishing, acks, credit) and the answers that wait for the disk share the state of one
connection; other requests are in modules of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from time import perf_counter_ns
from typing import Any

from fanlog.broker.authority import Permit
from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.messages.allowed_partitions import AllowedPartitions
from fanlog.broker.messages.checks import NotYetError
from fanlog.broker.messages.metering import Meter
from fanlog.broker.messages.missing_topics import maybe_notice
from fanlog.broker.messages.restrictions import Checked
from fanlog.broker.messages.topics import BrokerSubscription, Cursor
from fanlog.broker.ports import Addressed, FollowerPort
from fanlog.config import ListenerOptions
from fanlog.errors import (
    BadMagicError,
    ClosedError,
    FanlogError,
    FormatError,
    InvalidArgumentError,
    LimitError,
    RateLimitedError,
    UnavailableError,
    UnknownCommandError,
    UnreadableError,
    UnsupportedVersionError,
    allow_more,
)
from fanlog.format import messages
from fanlog.format.foreign import maybe_answer
from fanlog.format.frames import (
    FRAME_HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
    PROTOCOL_VERSION,
    FrameCutter,
    FrameKind,
    ack_frame,
    check_hello,
    feed_frame,
    frame,
    frame_head,
    known_kind,
    message_frame,
    read_credit,
    read_frame_header,
    wrong_port,
)
from fanlog.format.header import KIND_BATCH
from fanlog.format.long_messages import EncodedMessage
from fanlog.format.messages import decode
from fanlog.format.replication import FOLLOWER_CLIENT
from fanlog.format.trace_context import KIND_TRACED, SampledRecord, read_traced
from fanlog.identity import Identity, Login, Verb
from fanlog.listeners import (
    account_requests,
    backup_requests,
    config_requests,
    group_requests,
    log_requests,
    login_requests,
    operator_requests,
    pipeline_requests,
    producer_requests,
    queue_requests,
    replication_requests,
    schedule_requests,
    topic_requests,
    trace_requests,
    transaction_requests,
)
from fanlog.listeners.audited import AUDITED, Notes
from fanlog.listeners.faults import NOTHING_TAKEN, OUR_FAULT
from fanlog.listeners.fetches import Fetches
from fanlog.listeners.login_requests import HELLO_BYTES_MAX, LoggingIn, logged_in, maybe_known
from fanlog.listeners.notifier import NativeOutlet, Notifier, failure_of, retry_after
from fanlog.listeners.recheck import recheck_permit
from fanlog.listeners.request_session import Beginning, RequestAnswer
from fanlog.security.connections import CountedAccount

logger = logging.getLogger("fanlog.listeners")

# Requests of one peer before others get their turn: creating a topic waits for the disk.
_REQUESTS_A_TURN = 32
# Topics that the answer to a subscription lists.
_JOINED_AT_ONCE = 1000

FrameHandler = Callable[["NativeSession", int, int, memoryview], None]


class NativeSession:
    """One peer of the native protocol. It has many fields, because a peer may publish, read, take
    jobs and stage at once, and each frame looks at several of them."""

    def __init__(
        self,
        broker: BrokerCore,
        outlet: NativeOutlet,
        options: ListenerOptions,
        *,
        trusted: bool = False,
        audited: bool = True,
    ) -> None:
        """`trusted`: the peer is the broker's own program, or a worker. `audited`: the audit log
        has its changes."""
        self.broker = broker
        self.outlet = outlet
        peer = outlet.peer if isinstance(outlet, Addressed) else ""
        who = Identity(address=peer, listener="native", connection=peer)
        self.trusted = trusted
        self.permit = Permit(broker, who, trusted=trusted)
        # Asked by the intake about each topic that batches are for.
        self.guard = self.permit.may_publish if self.permit.guarded else None
        self.allowed = (
            AllowedPartitions(self.permit, broker.catalog.partitions)
            if self.permit.guarded
            else None
        )
        self.schedule_guard = self.permit.may_replace if self.permit.guarded else None
        self.options = options
        self._cutter = FrameCutter(min(options.frame_bytes_max, HELLO_BYTES_MAX))
        self._greeted = False
        # The broker's epoch as the peer was told it.
        self.greeted_epoch = 0
        self._logging_in: LoggingIn | None = None
        # Whether the answer to a change of its own account is pending.
        self.spared = False
        self._begin = b""
        self._closed = False
        self.subscriptions: dict[int, BrokerSubscription] = {}
        self._beginning: dict[int, Beginning] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._undurable = 0
        self.fetches = Fetches()
        # The link of a follower; None for clients.
        self.follower: FollowerPort | None = None
        # The kind of the request that is being handled.
        self._asked = 0
        self._half_frame = 0
        # The sampled records of the next batch; None: none are.
        self._marks: list[SampledRecord] | None = None
        self._held_up = False
        # Batches that the broker has decoded before it takes them; see `broker/messages/checks.py`.
        self.checked: list[Checked] = []
        self.checking = False
        self._metering = broker.metering
        self._counted = CountedAccount(broker.metering.connections)
        self._meter = Meter(broker.metering, self.permit)
        # The error for its batches while it is above its rate limit.
        self.limited: RateLimitedError | None = None
        self._throttled = False
        # Whether later frames wait for a request.
        self._waits = False
        # Called when the peer is gone, by subject.
        self.at_close: dict[str, Callable[[], None]] = {}
        self.client = ""
        # Names of producers that the peer has, or had: the id and epoch of each.
        self.registered: dict[str, tuple[int, int]] = {}
        self._audited = Notes() if audited else None

    # Bytes in

    def feed(self, data: bytes) -> None:
        """Takes bytes from the peer. Raises FormatError if it broke the protocol. Whole frames are
        kept while the outlet is full; feeding no bytes resumes with them."""
        data = self._cutter.join(data)
        if not self._greeted and data:
            self._begin = data[:FRAME_HEADER_BYTES]
            _check_begin(data)
        at, size = 0, len(data)
        requests = 0
        # A peer without login can make the broker keep at most one read, also of a partial frame.
        self._held_up = self._logging_in is not None
        while size - at >= PREFIX_BYTES and not self._closed:
            if self._logging_in is not None:
                self._held_up = True
                break
            length, kind = PREFIX.unpack_from(data, at)
            self._cutter.check_length(length, kind)
            end = at + length
            if end > size or self.outlet.full():
                break
            if self.checking or self._throttled or self._waits:
                self._held_up = True
                break
            if kind == KIND_BATCH and self._greeted:
                if self._marks is None and not self._metering.on:
                    at = self.broker.take(data, at, self)
                else:
                    at = self._take(data, at)
            elif kind == KIND_TRACED and (after := self._take_both(data, at)) > at:
                at = after
            elif self._is_busy():
                self._held_up = True
                break
            elif requests < _REQUESTS_A_TURN:
                try:
                    self._control(kind, data, at, end)
                except NotYetError:
                    continue
                requests += 1
                at = end
            else:
                self._held_up = True
                asyncio.get_running_loop().call_soon(self.outlet.resume)
                break
        if at:
            self._half_frame += 1
        if at < size and not self._closed:
            self._cutter.keep(data, at)

    def _take(self, data: bytes, at: int) -> int:
        """Hands batches to the broker that are traced or counted. A publisher above its rate waits
        for the next ones."""
        if not self._metering.on or self.trusted:
            return self._take_marked(data, at)
        rates = self._meter.rates
        self.limited = self._metering.maybe_refusal(rates)
        if self.limited is not None:
            return self._take_marked(data, at)
        self._metering.watch()
        end = self._take_marked(data, at)
        self._wait(self._metering.settle(rates, end - at))
        return end

    def _take_both(self, data: bytes, at: int) -> int:
        """Hands the frame at `at` to the broker together with the batch that it is about. Where
        that stopped: `at`, if the batch is not here yet."""
        if not self._greeted or self._marks is not None or self._metering.on:
            return at
        return self.broker.take(data, at, self)

    def _take_marked(self, data: bytes, at: int) -> int:
        if self._marks is None:
            return self.broker.take(data, at, self)
        after = self.broker.take_traced(data, at, self, self._marks)
        if after > at:
            self._marks = None
        return after

    def weigh(self, batches: bytes) -> None:
        """Counts batches that are staged."""
        if self._metering.on and not self.trusted:
            self._wait(self._metering.weigh(self._meter.rates, batches))

    def _wait(self, seconds: float) -> None:
        """Stops reading from the peer while it is above its rate."""
        if seconds:
            self._throttled = True
            asyncio.get_running_loop().call_later(seconds, self._pay)

    def _pay(self) -> None:
        self._throttled = False
        self.resume()

    def _control(self, kind: int, data: bytes, at: int, end: int) -> None:
        header = read_frame_header(data, at)
        payload = memoryview(data)[at + FRAME_HEADER_BYTES : end]
        if not self._greeted:
            self._hello(header.request, payload)
            return
        handler = HANDLERS.get(known_kind(kind))
        if handler is None:
            raise UnknownCommandError(f"A frame of kind {kind:#04x} is not for the broker.")
        describe = AUDITED.get(known_kind(kind))
        if describe is not None and self._audited is not None and self.broker.audit.on:
            self._audited.begin(self, header.request, describe, payload)
        self._asked = kind
        begun_ns = perf_counter_ns()
        try:
            handler(self, header.request, header.aux, payload)
        except UnreadableError as fault:
            self.fail(header.request, fault)
        except FormatError:
            raise
        except FanlogError as fault:
            self.fail(header.request, fault)
        self._took(begun_ns, kind, waited=False)

    def _took(self, begun_ns: int, kind: int, *, waited: bool) -> None:
        took_ns = perf_counter_ns() - begun_ns
        slow = self.broker.metrics.slow
        if took_ns > slow.request_ns:
            slow.request(took_ns, FrameKind(kind).name, self.permit.who, waited=waited)

    def _hello(self, request: int, payload: memoryview) -> None:
        hello = decode(messages.Hello, payload)
        if PROTOCOL_VERSION not in hello.versions:
            raise UnsupportedVersionError(
                f"The client speaks the protocol versions {list(hello.versions)}; this broker "
                f"(release {self.broker.release}) speaks {PROTOCOL_VERSION}. Install the same "
                "release of fanlog on both sides."
            )
        self.client = hello.client
        if self.broker.opening and not self.client.startswith(FOLLOWER_CLIENT):
            self.outlet.evict(UnavailableError(self.broker.opening))
            return
        self._cutter.frame_bytes_max = self.options.frame_bytes_max
        try:
            known = maybe_known(self, hello.login)
            if known is not None or hello.login is None:
                self._greeted = True
                self._welcome(request, known or self.permit.who)
                return
        except FanlogError as refusal:
            self.outlet.evict(refusal)
            return
        self._greeted = True
        self._logging_in = LoggingIn(self, hello.login, lambda who: self._let_in(request, who))

    def _let_in(self, request: int, who: Identity) -> None:
        """The login succeeded: frames that waited for it are processed."""
        if not self._closed:
            self._logging_in = None
            self._welcome(request, who)
            self.outlet.resume()

    def _welcome(self, request: int, who: Identity) -> None:
        if not self.trusted:
            self._counted.become(who.account)
        self.permit.who = who
        logger.debug(
            "%s: hello from client %s, protocol %d", self.who, self.client or "-", PROTOCOL_VERSION
        )
        login = logged_in(self)
        self.greeted_epoch = self.broker.epoch
        welcome = messages.Welcome(
            version=PROTOCOL_VERSION,
            release=self.broker.release,
            epoch=self.greeted_epoch,
            frame_bytes_max=self.options.frame_bytes_max,
            fetch_bytes_max=self.options.fetch_bytes_max,
            idle_timeout_seconds=self.options.idle_timeout_seconds,
            user=login.user,
            expires_seconds=login.expires_seconds,
            traced_per_second_max=self.broker.traces.per_second_max,
        )
        self.outlet.write(message_frame(FrameKind.WELCOME, welcome, request=request))

    # Answers

    def answer(self, request: int, answer: RequestAnswer = None) -> None:
        if self._audited:
            self._audited.end(self, request)
        if answer is None:
            self.outlet.write(frame(FrameKind.OK, request=request))
        elif isinstance(answer, EncodedMessage):
            head = frame_head(FrameKind.OK, answer.size, request=request)
            self.outlet.respond([head, *answer.parts])
        else:
            self.outlet.write(message_frame(FrameKind.OK, answer, request=request))

    def fail(self, request: int, fault: FanlogError) -> None:
        if self._audited:
            self._audited.end(self, request, fault)
        if self.broker.deposed and isinstance(fault, UnavailableError):
            # The next primary may have what this request has written: only there it is known.
            self._send_away(fault)
            return
        self.outlet.write(message_frame(FrameKind.ERROR, failure_of(fault), request=request))

    def _send_away(self, fault: FanlogError) -> None:
        """Another node is the primary: the client connects there, and asks again."""
        asyncio.get_running_loop().call_soon(self.outlet.finish, str(fault))

    def answer_durably(self, request: int, answer: RequestAnswer = None) -> None:
        """Answers when everything that the broker wrote for this request, and before, is
        durable."""
        self.when_durable(request, lambda: self.answer(request, answer))

    def answer_committed(self, request: int, answer: RequestAnswer) -> None:
        """Answers about a change that is durable already: when the replicas have it, too."""
        if self.broker.stream.replicated:
            self.answer_durably(request, answer)
        else:
            self.answer(request, answer)

    def when_durable(
        self, request: int, resume: Callable[[], None], after: Iterator[object] | None = None
    ) -> None:
        """Continues with a request when everything written so far is durable. An error, then or
        from the write, is the request's answer. The steps of `after` come first, in slices: what
        they write is durable, too."""

        def durable(fault: FanlogError | None) -> None:
            was_busy = self._is_busy()
            self._undurable -= 1
            try:
                if fault is not None:
                    raise type(fault)(str(fault))
                resume()
            except FanlogError as refused:
                self.fail(request, refused)
            except Exception:
                logger.exception("a request failed once it was durable")
                self.fail(request, FanlogError(OUR_FAULT))
            self._relieved(was_busy)

        self._undurable += 1
        if after is None:
            self.broker.internal.when_durable(durable)
        else:
            wait = self.broker.internal.when_durable
            self.broker.slices.in_slices(after, lambda: wait(durable))

    def _is_busy(self) -> bool:
        """Whether the limit of pending requests is reached."""
        return len(self._tasks) + self._undurable >= self.options.requests_max

    def _relieved(self, was_busy: bool) -> None:
        """A request was answered: requests that waited may continue."""
        if was_busy and self._held_up and not self._closed:
            self.outlet.resume()

    def hold_up(self) -> None:
        """Later frames wait until `go_on`: they may build on the request that is handled now."""
        self._waits = True

    def go_on(self) -> None:
        self._waits = False
        self.resume()

    def later(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """Answers from a task, for requests that wait for the disk."""
        kind, begun_ns = self._asked, perf_counter_ns()

        async def run() -> None:
            try:
                await work
                self._took(begun_ns, kind, waited=True)
            except FanlogError as fault:
                self.fail(request, fault)
            except Exception:
                logger.exception("a request of %s failed", self.client or "a client")
                self.fail(request, FanlogError(OUR_FAULT))

        def ended(task: asyncio.Task[None]) -> None:
            was_busy = self._is_busy()
            self._tasks.discard(task)
            self._relieved(was_busy)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(ended)

    # The publisher's side: the broker's RestrictedOrigin

    @property
    def patient(self) -> NativeSession:
        return self

    def acknowledge(self, entries: list[bytes]) -> None:
        self.outlet.write(ack_frame(entries))

    def refuse(
        self,
        number: int,
        partition: int,
        first_sequence: int,
        expected_sequence: int,
        error: FanlogError,
    ) -> None:
        if self.broker.deposed:
            self._send_away(error)
            return
        refused = messages.Refused(
            number,
            partition,
            first_sequence,
            expected_sequence,
            error.code,
            str(error),
            retry_after(error),
        )
        self.outlet.write(message_frame(FrameKind.REFUSED, refused))

    def resume(self) -> None:
        """The broker has checked the batches."""
        if not self._closed:
            self.outlet.resume()

    # The broker's Opener

    def hear_of_growth(self) -> None:
        """From now on the peer is notified of topics that grow, because it may publish to them."""
        openers = self.broker.openers
        if self not in openers:
            openers[self] = None
            self.at_close["growth"] = lambda: openers.pop(self, None)

    def grew(self, number: int, partitions: int) -> None:
        if self.outlet.full():
            # Notifications are limited. When the peer comes back, it opens its topics again.
            self.outlet.evict(LimitError(NOTHING_TAKEN))
            return
        self.outlet.write(message_frame(FrameKind.GREW, messages.Grew(number, partitions)))

    # The connection's side: `ConnectionSession`

    def marker(self, subscription: BrokerSubscription) -> bytes:
        return feed_frame(subscription.key)

    def farewell(self, error: FanlogError, subscription: BrokerSubscription | None) -> bytes:
        if isinstance(error, BadMagicError):
            foreign = maybe_answer(self._begin, str(error))
            if foreign is not None:
                return foreign
        key = 0 if subscription is None else subscription.key
        return message_frame(FrameKind.ERROR, failure_of(error), aux=key)

    @property
    def who(self) -> str:
        """The peer, for log lines."""
        return self.outlet.peer if isinstance(self.outlet, Addressed) else "in this program"

    # For operators

    @property
    def client_name(self) -> str:
        return self.client

    def targets(self) -> list[str]:
        return [subscription.target for subscription in self.subscriptions.values()]

    def behind(self) -> Iterator[Cursor]:
        for subscription in list(self.subscriptions.values()):
            for cursor in subscription.cursors:
                if not cursor.live and not cursor.dropped:
                    yield cursor

    @property
    def is_closed(self) -> bool:
        return self._closed

    def greeted(self) -> bool:
        return self._greeted and self._logging_in is None

    def half_frame(self) -> int:
        """The number of the frame that is partly received; 0 if there is none."""
        return self._half_frame + 1 if self._cutter.kept_bytes else 0

    def relieves(self) -> bool:
        if self.follower is not None:
            return True
        # One that is about to follow.
        return self.broker.followers is not None and self.client.startswith(FOLLOWER_CLIENT)

    def held_up(self) -> bool:
        return self._held_up

    def drain(self) -> None:
        """Notifies the peer that the broker stops, so that it sends nothing more."""
        reason = messages.Goodbye("The broker is stopping. The client comes back by itself.")
        self.outlet.write(message_frame(FrameKind.DRAINING, reason))

    def recheck(self) -> FanlogError | None:
        """Permissions have changed. Subscriptions that are no longer allowed end, and the client is
        notified."""
        if self.spared:
            return None
        before = self.permit.who
        fault = recheck_permit(self.broker.gate, self.permit)
        if fault is None and self.permit.who is not before:
            self._recheck_subscriptions()
        return fault

    def no_longer_spared(self) -> None:
        """The answer that it was spared for is sent."""
        self.spared = False
        fault = self.recheck()
        if fault is not None:
            self.outlet.evict(fault)

    def become(self, who: Identity) -> None:
        """The peer has logged in again."""
        self.permit.who = who
        self._recheck_subscriptions()

    def logged_in_again(self, shown: Login) -> None:
        """The peer's login succeeded."""

    def _recheck_subscriptions(self) -> None:
        for number, subscription in list(self.subscriptions.items()):
            try:
                self.ask_all(*subscription.asked)
            except FanlogError as refusal:
                self.notifier_of(number).ended(refusal)
                subscription.keeper.leave(subscription)

    def closed(self) -> None:
        self._closed = True
        self._counted.become(None)
        if self._logging_in is not None:
            self._logging_in.stop()
        for subscription in self.subscriptions.values():
            subscription.keeper.lost(subscription)
        self.subscriptions.clear()
        self.fetches.close()
        self.broker.fetch_memory.gone(self.outlet)
        for leave in self.at_close.values():
            leave()
        self.at_close.clear()

    # Requests

    def subscribe(self, request: int, aux: int, payload: memoryview) -> None:
        wanted = decode(messages.Subscribe, payload)
        asked = [(Verb.SUBSCRIBE, wanted.target)]
        if wanted.durable:
            asked.append((Verb.GROUP, wanted.durable))
        self.ask_all(*asked)
        self.begin(aux, wanted)
        self.later(request, self._subscribing(request, aux, wanted, tuple(asked)))

    def ask_all(self, *asked: tuple[Verb, str]) -> tuple[tuple[Verb, str], ...]:
        """Checks all permissions of a subscription; raises if one is missing."""
        for verb, name in asked:
            self.permit.ask(verb, name)
        return asked

    def check_number(self, number: int) -> None:
        """Checks that the peer may begin a subscription of this number."""
        if number in self.subscriptions or number in self._beginning:
            raise InvalidArgumentError(
                f"Subscription {number} of this connection is in use: choose another number."
            )
        count = len(self.subscriptions) + len(self._beginning)
        if count >= self.options.subscriptions_max:
            raise LimitError(
                f"This connection has {count} subscriptions, which is the limit. Open another "
                "connection, or follow many topics with one pattern. "
                + allow_more("listener.subscriptions_max")
            )

    def begin(self, number: int, wanted: Beginning) -> None:
        """The peer wants a subscription of this number, which takes a while to begin."""
        self.check_number(number)
        self._beginning[number] = wanted

    def has_begun(self, number: int, wanted: Beginning) -> bool:
        """It can begin; False if the peer does not want it any more."""
        still_wanted = self._beginning.get(number) is wanted
        if still_wanted:
            del self._beginning[number]
        return still_wanted and not self._closed

    def keep(
        self, number: int, subscription: BrokerSubscription, asked: tuple[tuple[Verb, str], ...]
    ) -> None:
        """Registers a subscription that has started. The peer may be gone before it gets the
        answer."""
        subscription.asked = asked
        if self._closed:
            subscription.keeper.lost(subscription)
        else:
            self.subscriptions[number] = subscription

    def notifier_of(self, number: int) -> Notifier:
        """The notifier for the subscription with this number."""
        return Notifier(self.outlet, number, self.subscriptions)

    async def _subscribing(
        self,
        request: int,
        key: int,
        wanted: messages.Subscribe,
        asked: tuple[tuple[Verb, str], ...],
    ) -> None:
        try:
            subscription, joined = await self.broker.subscriptions.add(
                key, wanted, self.outlet, self.notifier_of(key), self.client, permit=self.permit
            )
        finally:
            begun = self.has_begun(key, wanted)
        if not begun:
            self.broker.subscriptions.remove(subscription)
            raise ClosedError(f"Subscription {key} was ended before it began.")
        try:
            # Permissions may have changed while it began.
            self.ask_all(*asked)
        except FanlogError:
            self.broker.subscriptions.remove(subscription)
            raise
        self.keep(key, subscription, asked)
        logger.debug(
            "%s: subscription %d to %s from %s, policy %s, %d topics",
            self.who,
            key,
            wanted.target,
            wanted.start.kind,
            wanted.policy,
            len(joined),
        )
        # A pattern may match very many topics: the answer lists some, the others follow in slices.
        self.answer(request, messages.Subscribed(tuple(joined[:_JOINED_AT_ONCE])))
        self.tell_at_start(subscription)
        self.broker.subscriptions.start(subscription, joined[_JOINED_AT_ONCE:])

    def tell_at_start(self, subscription: BrokerSubscription) -> None:
        """After the answer: notices for a new reader."""
        notice = maybe_notice(
            self.broker.catalog, subscription.target, wildcard=subscription.wildcard
        )
        if notice is not None and self.permit.may(Verb.DESCRIBE, notice.topic):
            subscription.reader.notice(notice)

    def unsubscribe(self, request: int, aux: int, payload: memoryview) -> None:
        self._beginning.pop(aux, None)
        subscription = self.subscriptions.pop(aux, None)
        if subscription is not None:
            if payload and decode(messages.Unsubscribe, payload).keep:
                subscription.keeper.lost(subscription)
            else:
                subscription.keeper.leave(subscription)
            logger.debug("%s: subscription %d to %s ended", self.who, aux, subscription.target)
        self.answer(request)

    def credit(self, request: int, aux: int, payload: memoryview) -> None:
        subscription = self.subscriptions.get(aux)
        if subscription is not None:
            self.broker.fan_out.grant(subscription, read_credit(payload))

    def fetch(self, request: int, aux: int, payload: memoryview) -> None:
        self.fetches.take(self, request, payload)

    def commit_offsets(self, request: int, aux: int, payload: memoryview) -> None:
        wanted = decode(messages.CommitOffsets, payload)
        if aux:
            group_requests.commit_offsets(self, aux, wanted)
        else:
            self.permit.ask(Verb.GROUP, wanted.durable)
            for name in {position.topic for position in wanted.positions}:
                self.permit.ask(Verb.SUBSCRIBE, name)
            self.broker.commit_positions(wanted.durable, wanted.positions)
        self.answer_durably(request)

    def traced(self, request: int, aux: int, payload: memoryview) -> None:
        """Some records of the next batch are sampled."""
        self._marks = read_traced(payload) or None

    def ping(self, request: int, aux: int, payload: memoryview) -> None:
        self.outlet.write(frame(FrameKind.PONG, bytes(payload[:64]), request=request, aux=aux))

    def goodbye(self, request: int, aux: int, payload: memoryview) -> None:
        """A peer that says goodbye does not come back: the broker need not wait for it."""
        for subscription in self.subscriptions.values():
            subscription.keeper.leave(subscription)
        self.subscriptions.clear()
        self.outlet.finish("the client said goodbye")


def _check_begin(data: bytes) -> None:
    """Checks as early as possible that a connection begins with our protocol."""
    if len(data) >= FRAME_HEADER_BYTES:
        check_hello(data)
    elif len(data) >= PREFIX_BYTES and data[4] != FrameKind.HELLO:
        raise wrong_port(data)


# Handlers of one subject have their own file: `group_requests.py` and its siblings.
HANDLERS: Mapping[FrameKind, FrameHandler] = (
    {
        FrameKind.SUBSCRIBE: NativeSession.subscribe,
        FrameKind.UNSUBSCRIBE: NativeSession.unsubscribe,
        FrameKind.FETCH: NativeSession.fetch,
        FrameKind.COMMIT: NativeSession.commit_offsets,
        FrameKind.CREDIT: NativeSession.credit,
        FrameKind.TRACED: NativeSession.traced,
        FrameKind.PING: NativeSession.ping,
        FrameKind.GOODBYE: NativeSession.goodbye,
    }
    | topic_requests.HANDLERS
    | group_requests.HANDLERS
    | queue_requests.HANDLERS
    | transaction_requests.HANDLERS
    | log_requests.HANDLERS
    | backup_requests.HANDLERS
    | producer_requests.HANDLERS
    | schedule_requests.HANDLERS
    | config_requests.HANDLERS
    | login_requests.HANDLERS
    | account_requests.HANDLERS
    | trace_requests.HANDLERS
    | operator_requests.HANDLERS
    | pipeline_requests.HANDLERS
    | replication_requests.HANDLERS
)
