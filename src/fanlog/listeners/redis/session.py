"""One Redis client's session, without I/O: commands in, replies out in order.

A reply to PUBLISH waits until the broker has the message; the replies after it wait too. Commands
of a subscriber that lags wait until it has its messages, because in Redis they would come after
them.

It is long because replies that wait, subscriptions and MULTI hold each other up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from fanlog.broker.authority import Permit
from fanlog.broker.messages.topics import BrokerSubscription, Cursor
from fanlog.errors import BadMagicError, FanlogError
from fanlog.format.channels import pattern_over, topic_of
from fanlog.format.frames import NATIVE_PORT_HINT, FrameKind, is_hello, message_frame
from fanlog.format.messages import ErrorAnswer
from fanlog.format.resp import Command, CommandReader, PipelineReader, Publishes, RespLimits
from fanlog.format.resp_replies import NO_REPLY, QUEUED, ErrorReply, Raw, RespReply, encode_reply
from fanlog.identity import Account, Identity, Verb
from fanlog.listeners.faults import OUR_FAULT
from fanlog.listeners.recheck import recheck_permit
from fanlog.listeners.redis.commands import COMMANDS, find_command
from fanlog.listeners.redis.peer import CommandSpec, RedisOutlet, ServerState, no_permission
from fanlog.listeners.redis.publishing import RedisPublishing
from fanlog.listeners.redis.pubsub import PubSub
from fanlog.listeners.redis.replies import Replies
from fanlog.security.connections import CountedAccount
from fanlog.security.gate import SecurityGate

if TYPE_CHECKING:
    from fanlog.config import RedisOptions

logger = logging.getLogger("fanlog.listeners")

# Work for one peer before others get their turn.
_COMMANDS_A_TURN = 2048
_NAMES_A_STEP = 512
_OUT_BYTES = 64 * 1024
# Memory of a queued word besides its bytes.
_WORD_BYTES = 64


class RedisSession:
    """One peer. The command handlers read and change the public fields.

    It has many fields, because Redis keeps a mode for almost every command, and `PUBLISH` and the
    reader look at several of them for each read. `RedisPeer` says which belong together."""

    commands: ClassVar[Mapping[str, CommandSpec]] = COMMANDS
    find_command = staticmethod(find_command)

    def __init__(
        self,
        pubsub: PubSub,
        state: ServerState,
        outlet: RedisOutlet,
        pipeline: PipelineReader,
        *,
        peer: str,
        local: str,
    ) -> None:
        options = state.options
        self.pubsub = pubsub
        self.state = state
        self.outlet = outlet
        self.number = state.next_number()
        self.peer = peer
        self.local = local
        # The identity before the login.
        self.arrived = Identity("", peer, "redis", str(self.number))
        self.permit = Permit(state.broker, self.arrived)
        self._logged_in = CountedAccount(state.broker.metering.connections)
        self._waiting_for: asyncio.Task[None] | None = None
        self.created_at = state.now()
        self.resp3 = False
        self.name = b""
        self.library: tuple[bytes, bytes] = (b"", b"")
        self.database = 0
        self.last_command = "NULL"
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.shard_channels: dict[bytes, None] = {}
        self.names_bytes = 0
        self.replies: Literal["on", "off", "skip"] = "on"
        self.skip_next = False
        self.queue: list[tuple[CommandSpec, Command]] | None = None
        self.queue_failed = False
        self._queue_bytes = 0
        self._reader = CommandReader(_limits(options), pipeline)
        self.trusted = not state.guarded
        self._todo: deque[Command | Publishes] = deque()
        self._replies = Replies()
        self._publishing = RedisPublishing(
            pubsub, self._replies, self.permit, state.broker.metering
        )
        self._gathering = pubsub.gathering
        self.in_transaction = False
        self._waits = False
        self._throttled = False
        # Whether it does nothing but publish and take answers, so far as commands go.
        self._plain = self.trusted
        self._stepped = False
        self._ending = False
        self._closed = False
        self._new = True

    @property
    def trusted(self) -> bool:
        """Whether it has logged in, if it has to."""
        return self._reader.trusted

    @trusted.setter
    def trusted(self, trusted: bool) -> None:
        self._reader.trusted = trusted

    # For operators

    @property
    def client_name(self) -> str:
        return self.name.decode(errors="replace")

    def targets(self) -> list[str]:
        names = (*self.channels, *self.patterns, *self.shard_channels)
        return [name.decode(errors="replace") for name in names]

    def behind(self) -> Iterator[Cursor]:
        # Unsent bytes wait for the connection: there is no window here.
        return iter(list(self.outlet.waiting))

    @property
    def user(self) -> str:
        """The name of its login, in Redis's terms."""
        return self.permit.who.user or "default"

    @property
    def subscribed(self) -> bool:
        return bool(self.channels or self.patterns or self.shard_channels)

    # Bytes in

    def feed(self, data: bytes) -> None:
        """Takes bytes from the peer; feeding no bytes resumes with waiting ones."""
        if data:
            if self._plain and not self._waits and not self.outlet.blocked:
                found = self._reader.maybe_publishes(data)
                if found is not None:
                    self._publish_plainly(*found)
                    return
            if self._new:
                self._new = False
                if is_hello(data):
                    raise BadMagicError(f"This is the port for Redis clients. {NATIVE_PORT_HINT}")
            self._todo.extend(self._reader.feed(data))
        begun_ns = perf_counter_ns()
        self._work()
        took_ns = perf_counter_ns() - begun_ns
        slow = self.state.broker.metrics.slow
        if took_ns > slow.request_ns:
            slow.request(took_ns, self.last_command, self.permit.who, waited=False)
        self._plain = self._is_plain()

    def _is_plain(self) -> bool:
        """Whether PUBLISH commands can run as they come: none waits, none is incomplete, and no
        mode changes them. Only commands change that."""
        return (
            not self._todo
            and not self._reader.begun
            and self._publishes_at_once()
            and self._waiting_for is None
            and not self._ending
        )

    def _publishes_at_once(self) -> bool:
        """Whether PUBLISH is neither refused nor queued, has a reply, and can't come back here."""
        return self.trusted and self.replies == "on" and self.queue is None and not self.subscribed

    def _work(self) -> None:
        left = _COMMANDS_A_TURN
        todo = self._todo
        self._stepped = False
        while todo and not self._ending and not self._must_wait():
            if not left or self._stepped:
                self.outlet.proceed_soon()
                break
            left -= 1
            item = todo.popleft()
            if type(item) is Publishes:
                self._publish_run(item)
            else:
                assert isinstance(item, list)
                self._obey(item)
            if self._replies.kept_bytes > _OUT_BYTES:
                self._flush()
        fault = self._reader.fault
        if fault is not None and not todo and not self._ending:
            logger.warning("%s is cut off: %s", self.peer, str(fault))
            self.say(ErrorReply(f"ERR {fault}"))
            self._ending = True
        self._hand_on()

    def _hand_on(self) -> None:
        """Submits the messages of one read, and sends the replies."""
        self._replies.close()
        self._flush()
        if self._gathering.runs:
            self._gathering.read_over(self.number)

    def _must_wait(self) -> bool:
        """Whether the next command has to wait: for messages to be stored, or for the peer to
        read."""
        if self._waits or self._throttled or self._waiting_for is not None:
            return True
        if self.outlet.crowded():
            return True
        return self.subscribed and (self.outlet.blocked or bool(self.outlet.waiting))

    def busy(self) -> bool:
        """Whether commands wait here, so that reading pauses."""
        return bool(self._todo) or self._waits or self._throttled or self._waiting_for is not None

    # Who it is

    def become(self, account: Account) -> None:
        """It has logged in. Raises ConnectionQuotaError if the account has too many connections."""
        self._logged_in.become(account)
        gate = self.state.broker.gate
        who = msgspec.structs.replace(self.arrived, user=account.name, account=account)
        if isinstance(gate, SecurityGate):
            who = gate.admit(account, self.arrived)
        self.permit.who = who
        self.trusted = True

    def certified(self, names: Sequence[str]) -> None:
        """Its TLS certificate may identify it."""
        found = self.state.broker.gate.certified(names, self.arrived)
        if found is not None and found.account is not None:
            self.become(found.account)

    def log_out(self) -> None:
        self._logged_in.become(None)
        self.permit.who = self.arrived
        self.trusted = not self.state.guarded

    def wait_for(self, work: Coroutine[Any, Any, RespReply]) -> RespReply:
        """Answers from a task; later commands wait for its reply."""
        silent = self.replies != "on"

        async def run() -> None:
            try:
                reply = await work
            except Exception:
                logger.exception("a command of %s failed", self.peer)
                reply = ErrorReply(f"ERR {OUR_FAULT}")
            self._waiting_for = None
            if self._closed:
                return
            if not silent:
                self._replies.put(encode_reply(reply, resp3=self.resp3))
            self._flush()
            self.outlet.proceed_soon()

        self._waiting_for = asyncio.get_running_loop().create_task(run())
        return NO_REPLY

    def recheck(self) -> FanlogError | None:
        """Permissions have changed. A client that follows a forbidden channel is disconnected, as
        in Redis."""
        account = self.permit.who.account
        if account is None or account.kind == "anonymous":
            return None
        before = self.permit.who
        fault = recheck_permit(self.state.broker.gate, self.permit)
        if fault is not None or self.permit.who is before:
            return fault
        return self.maybe_forbidden()

    def maybe_forbidden(self) -> FanlogError | None:
        """The error against a channel that it follows, or None."""
        for target in self._targets():
            refusal = self.permit.maybe_refusal(Verb.SUBSCRIBE, target)
            if refusal is not None:
                return refusal
        return None

    def _targets(self) -> Iterator[str]:
        """The permissions of everything that it follows."""
        yield from (topic_of(name) for name in self.channels)
        yield from (topic_of(name, shard=True) for name in self.shard_channels)
        yield from (pattern_over(name) for name in self.patterns)

    def relieves(self) -> bool:
        return False

    def held_up(self) -> bool:
        """Its connection counts as full while commands wait, and resumes by itself."""
        return False

    def _obey(self, words: Command) -> None:
        found = find_command(words)
        if isinstance(found, ErrorReply):
            self._reject(found)
        elif (refusal := self._refusal(found)) is not None:
            self._reject(refusal)
        elif self.queue is not None and not found.at_once:
            self._enqueue(found, words)
        elif found.waits and self._replies.owed and self._waits_for_messages(words):
            return
        else:
            self.last_command = found.name
            self.say(found.handler(self, words))
        if self.replies == "skip":
            self.replies = "on"
        if self.skip_next:
            self.skip_next = False
            self.replies = "skip"

    def _refusal(self, command: CommandSpec) -> ErrorReply | None:
        if not self.trusted and not command.no_auth:
            return ErrorReply("NOAUTH Authentication required.")
        if not self.resp3 and not command.subscribed and self.subscribed:
            return ErrorReply(
                f"ERR Can't execute '{command.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / "
                "PING / QUIT / RESET are allowed in this context"
            )
        return self._forbidden(command)

    def _forbidden(self, command: CommandSpec) -> ErrorReply | None:
        if command.verb is not None and not self.permit.may(command.verb, ""):
            return no_permission(self, f"run the '{command.name}' command")
        return None

    def _reject(self, failure: ErrorReply) -> None:
        self.queue_failed = self.queue is not None
        self.say(failure)

    def _enqueue(self, command: CommandSpec, words: Command) -> None:
        assert self.queue is not None
        self._queue_bytes += sum(map(len, words)) + _WORD_BYTES * len(words)
        if self._queue_bytes > self.state.options.request_bytes_max:
            self._reject(
                ErrorReply("ERR MULTI holds more than redis.request_bytes_max; use DISCARD")
            )
            return
        self.queue.append((command, words))
        self.say(QUEUED)

    def _waits_for_messages(self, words: Command) -> bool:
        """True if a message published before has to be on disk first, and is not yet."""
        self._end_turn()
        if not self._publishing.pending:
            return False
        self._waits = True
        self._todo.appendleft(words)
        return True

    # Publishing

    def _publish_run(self, run: Publishes) -> None:
        if self._publishes_at_once():
            self.last_command = "publish"
            self._publishing.publish(run.channel, run.values, self, shard=False, silent=False)
            return
        for value in run.values:
            self._obey([b"PUBLISH", run.channel, value])

    def _publish_plainly(self, channel: bytes, values: Sequence[bytes]) -> None:
        """All commands of one read have run, and only answers of the broker are pending."""
        self.last_command = "publish"
        self._publishing.publish(channel, values, self, shard=False, silent=False)
        replies = self._replies
        if not replies.owed or replies.kept_bytes > _OUT_BYTES:
            self._flush()
        # Also if the broker has everything by now: replies of the next read don't wait with these.
        replies.close()
        if self._gathering.runs:
            self._gathering.read_over(self.number)

    def publish(self, channel: bytes, value: bytes, *, shard: bool) -> RespReply:
        """One message; its reply follows when it is taken in."""
        silent = self.replies != "on"
        self._publishing.publish(channel, (value,), self, shard=shard, silent=silent)
        if self.subscribed:
            # Should it come back here, it comes before its reply and before anything later.
            self._end_turn()
        return NO_REPLY

    def _end_turn(self) -> None:
        """Submits all messages, after earlier replies."""
        self._replies.close()
        self._flush()
        self.pubsub.end_turn()

    def settled(self) -> None:
        """The broker has answered for messages that this peer has published."""
        self._publishing.pending -= 1
        if self._closed:
            return
        self._flush()
        if self._waits and not self._publishing.pending:
            self._waits = False
            self.outlet.proceed_soon()

    def throttle(self, seconds: float) -> None:
        """The peer is above its rate: reading pauses, and its commands wait, for this time."""
        if not self._throttled:
            self._throttled = True
            self.outlet.later(seconds, self._pay)

    def _pay(self) -> None:
        self._throttled = False
        if not self._closed:
            self.outlet.proceed_soon()

    # Replies

    def say(self, reply: RespReply) -> None:
        """A reply, unless the peer wants none."""
        if self.replies == "on":
            self._replies.put(encode_reply(reply, resp3=self.resp3))

    def push(self, data: bytes) -> None:
        """The confirmation of a subscription, which is always sent."""
        self._replies.put(data)

    def _flush(self) -> None:
        data = self._replies.take()
        if data:
            self.outlet.write(data)
        if not self._replies.owed:
            if self._ending and not self._closed:
                self.outlet.finish()
        elif self._replies.kept_bytes > self.state.options.request_bytes_max:
            self._waits = self._publishing.pending > 0

    def end(self) -> None:
        """Closes the connection when everything was sent."""
        self._ending = True

    # MULTI

    def begin_queue(self) -> None:
        self.queue, self.queue_failed, self._queue_bytes = [], False, 0

    def drop_queue(self) -> None:
        self.queue, self.queue_failed, self._queue_bytes = None, False, 0

    def run_queue(self) -> RespReply:
        """Runs the commands queued by MULTI."""
        queue = self.queue or []
        self.drop_queue()
        said_bytes_max = self._replies.said_bytes + self.state.options.request_bytes_max
        self.in_transaction = True
        self.say(Raw(b"*%d\r\n" % len(queue)))
        for command, words in queue:
            if command.waits and self._publishing.pending:
                self._end_turn()
            # Permissions may have changed since it was queued.
            self.say(self._forbidden(command) or command.handler(self, words))
            if self._replies.said_bytes > said_bytes_max:
                logger.warning("%s is cut off: EXEC says too much at once", self.peer)
                self._ending = True
                break
        self.in_transaction = False
        return NO_REPLY

    # Subscriptions

    def split(self, words: Command) -> list[bytes]:
        """The names of a command that may have very many: some now, the rest after others had
        their turn."""
        names = words[1:]
        if len(names) > _NAMES_A_STEP and not self.in_transaction:
            self._todo.appendleft([words[0], *names[_NAMES_A_STEP:]])
            del names[_NAMES_A_STEP:]
            self._stepped = True
        return names

    def unsubscribe_all(self) -> None:
        """Silently, at the end or for RESET."""
        for name in self.channels:
            self.pubsub.unsubscribe(self, name, shard=False)
        for name in self.shard_channels:
            self.pubsub.unsubscribe(self, name, shard=True)
        for text in self.patterns:
            self.pubsub.punsubscribe(self, text)
        self.channels, self.shard_channels, self.patterns = {}, {}, {}
        self.names_bytes = 0

    def speak(self, version: int) -> None:
        """Another RESP from now on."""
        resp3 = version == 3
        if resp3 == self.resp3:
            return
        self.resp3 = resp3
        if self.subscribed:
            self._end_turn()
            named = [(name, False) for name in self.channels]
            sharded = [(name, True) for name in self.shard_channels]
            self.pubsub.rebind(self, named + sharded)

    # The connection's side: `ConnectionSession`

    def marker(self, subscription: BrokerSubscription) -> bytes:
        return b""

    def farewell(self, error: FanlogError, subscription: BrokerSubscription | None) -> bytes:
        if isinstance(error, BadMagicError):
            # One of Fanlog's own clients: this is the answer that it can read.
            return message_frame(FrameKind.ERROR, ErrorAnswer(error.code, str(error)))
        return b"" if subscription is not None else b"-ERR %b\r\n" % str(error).encode()

    def greeted(self) -> bool:
        return True

    def half_frame(self) -> int:
        """The number of the command that is partly received; 0 if there is none."""
        return self._reader.commands + 1 if self._reader.begun else 0

    def drain(self) -> None:
        """Redis clients learn of a stop by the end of the connection."""

    def closed(self) -> None:
        if self._closed:
            return
        self._closed = self._ending = True
        self._logged_in.become(None)
        if self._waiting_for is not None:
            self._waiting_for.cancel()
        self._todo.clear()
        self.unsubscribe_all()
        self.state.sessions.pop(self.number, None)


def _limits(options: RedisOptions) -> RespLimits:
    return RespLimits(
        options.arguments_max,
        options.bulk_bytes_max,
        options.inline_bytes_max,
        options.request_bytes_max,
    )
