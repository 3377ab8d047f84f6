"""Both listeners ask the one authority before they do anything, and nothing happens if it says no.

The tables name every frame of the native protocol and every Redis command: one that is added
without a verb fails here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import fanlog
from fanlog.config import Config, ListenerOptions, RedisOptions
from fanlog.errors import ForbiddenError
from fanlog.format import messages
from fanlog.format.accounts import AskAccounts, ListKeys
from fanlog.format.batch import encode_batch
from fanlog.format.channels import pattern_over
from fanlog.format.frames import FrameKind, frame
from fanlog.format.patterns import fits
from fanlog.format.pipelines import PipelineRun
from fanlog.format.replication import Follow
from fanlog.format.schedules import Delayed, encode_delayed, record_key
from fanlog.format.settings import ConfigRequest
from fanlog.format.traces import ListTraces
from fanlog.identity import Identity, Verb
from fanlog.listeners.native import HANDLERS
from fanlog.listeners.redis.commands import COMMANDS
from fanlog.model import Start
from fanlog.node import Node
from fanlog.security.rules import forbidden
from tests.listeners.peers import HOST, PATIENCE_SECONDS, Peer, Serving, one_message
from tests.listeners.redis.wire import Wire

Asked = tuple[Verb, str]


class Rules:
    """Allows what fits a pattern of its verb, and notes what it was asked."""

    def __init__(self, **allowed: str) -> None:
        self.allowed = {Verb(verb): patterns.split() for verb, patterns in allowed.items()}
        self.asked: list[Asked] = []
        self.who: set[Identity] = set()

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        self.asked.append((verb, name))
        self.who.add(who)
        if not any(name == p or fits(name, p) for p in self.allowed.get(verb, ())):
            raise forbidden(who, verb, name)


@asynccontextmanager
async def ruled(rules: Rules, folder: Path | None = None) -> AsyncIterator[Serving]:
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0),
        redis=RedisOptions(host=HOST, port=0),
    )
    node = Node(folder, config, authority=rules)
    node.start()
    served = Serving(node)
    try:
        yield served
    finally:
        served.close_peers()
        await node.stop()


# The native listener


class Case(NamedTuple):
    """A request about the topic `t`, and what is asked for it."""

    message: Callable[[], Any] | None
    asked: tuple[Asked, ...]
    # A list leaves out what may not be seen, and is not refused.
    answered: bool = False
    # What decides about parts of the answer.
    looked_at: tuple[Asked, ...] = ()


T = "t"
POSITION = messages.Position(T, 0, 0)
TICKET = bytes(16)
NATIVE: dict[FrameKind, Case | None] = {
    # Nothing is asked: they are about what was allowed before, or about the connection alone.
    FrameKind.HELLO: None,
    FrameKind.LOGIN: None,
    FrameKind.ACCOUNTS: Case(lambda: AskAccounts(ListKeys()), ((Verb.ADMIN, ""),)),
    FrameKind.UNSUBSCRIBE: None,
    FrameKind.CREDIT: None,
    FrameKind.PING: None,
    FrameKind.GOODBYE: None,
    FrameKind.RELEASE: None,
    FrameKind.SEEK: None,
    FrameKind.SETTLE: None,
    FrameKind.ABORT_TRANSACTION: None,
    FrameKind.TRACED: None,
    # Has tests of its own below.
    FrameKind.BATCH: None,
    FrameKind.STAGE: None,
    FrameKind.OPEN_TOPIC: Case(lambda: messages.OpenTopic(T), ((Verb.PUBLISH, T),)),
    FrameKind.CREATE_TOPIC: Case(lambda: messages.CreateTopic("new"), ((Verb.MANAGE, "new"),)),
    FrameKind.GROW_TOPIC: Case(lambda: messages.GrowTopic(T, 2), ((Verb.MANAGE, T),)),
    FrameKind.ALTER_TOPIC: Case(
        lambda: messages.AlterTopic(T, {"retention_seconds": 1}), ((Verb.MANAGE, T),)
    ),
    FrameKind.LIST_TOPICS: Case(messages.ListTopics, ((Verb.DESCRIBE, T),), answered=True),
    FrameKind.DESCRIBE_TOPIC: Case(lambda: messages.NamedTopic(T), ((Verb.DESCRIBE, T),)),
    FrameKind.DELETE_TOPIC: Case(lambda: messages.NamedTopic(T), ((Verb.MANAGE, T),)),
    FrameKind.SUBSCRIBE: Case(
        lambda: messages.Subscribe(target=T, durable="d"), ((Verb.SUBSCRIBE, T), (Verb.GROUP, "d"))
    ),
    FrameKind.FETCH: Case(lambda: messages.Fetch(1, 0, 0), ((Verb.SUBSCRIBE, T),)),
    FrameKind.COMMIT: Case(
        lambda: messages.CommitOffsets("d", (POSITION,)), ((Verb.GROUP, "d"), (Verb.SUBSCRIBE, T))
    ),
    FrameKind.COMMITTED: Case(lambda: messages.FindCommitted("d"), ((Verb.GROUP, "d"),)),
    FrameKind.FIND_OFFSETS: Case(
        lambda: messages.FindOffsets(T, Start("latest")), ((Verb.DESCRIBE, T),)
    ),
    FrameKind.STATUS: Case(None, ((Verb.DESCRIBE, ""),)),
    FrameKind.JOIN_GROUP: Case(
        lambda: messages.JoinGroup(group="g", member="m", target=T),
        ((Verb.SUBSCRIBE, T), (Verb.GROUP, "g")),
    ),
    FrameKind.LIST_GROUPS: Case(messages.ListGroups, (), answered=True),
    FrameKind.DESCRIBE_GROUP: Case(lambda: messages.NamedGroup("g"), ((Verb.GROUP, "g"),)),
    FrameKind.RESET_GROUP: Case(
        lambda: messages.ResetGroup(group="g", start=Start("earliest")), ((Verb.GROUP, "g"),)
    ),
    FrameKind.DELETE_GROUP: Case(lambda: messages.NamedGroup("g"), ((Verb.GROUP, "g"),)),
    FrameKind.REGISTER_PRODUCER: Case(
        lambda: messages.RegisterProducer("p"), ((Verb.PRODUCER, "p"),)
    ),
    FrameKind.WORK: Case(
        lambda: messages.Work(queue="q", worker="w", target=T),
        ((Verb.SUBSCRIBE, T), (Verb.QUEUE, "q")),
    ),
    FrameKind.BEGIN_TRANSACTION: Case(
        lambda: messages.BeginTransaction("id"), ((Verb.PRODUCER, "id"),)
    ),
    FrameKind.COMMIT_TRANSACTION: Case(
        lambda: messages.CommitTransaction(
            TICKET.hex(), "id", (messages.GroupOffsets("g", "m", 1, (POSITION,)),)
        ),
        ((Verb.PRODUCER, "id"), (Verb.GROUP, "g")),
    ),
    FrameKind.DELETE_RECORDS: Case(
        lambda: messages.DeleteRecords(T, (messages.PartitionOffset(0, 0),)), ((Verb.MANAGE, T),)
    ),
    FrameKind.BACKUP: Case(lambda: messages.BackupRequest("begin"), ((Verb.ADMIN, ""),)),
    FrameKind.COMPACT_TOPIC: Case(lambda: messages.NamedTopic(T), ((Verb.MANAGE, T),)),
    FrameKind.CANCEL_SCHEDULED: Case(
        lambda: messages.CancelScheduled(("i",)), ((Verb.SCHEDULE, "i"),)
    ),
    FrameKind.LIST_SCHEDULED: Case(messages.ListScheduled, (), answered=True),
    FrameKind.ADD_SCHEDULE: Case(
        lambda: messages.AddSchedule(name="s", topic=T, value=b"x", every_seconds=60.0),
        ((Verb.PUBLISH, T), (Verb.SCHEDULE, "s")),
    ),
    FrameKind.CONNECTIONS: Case(messages.ConnectionsRequest, ((Verb.ADMIN, ""),)),
    FrameKind.METRICS: Case(
        None, ((Verb.DESCRIBE, ""),), looked_at=((Verb.DESCRIBE, T), (Verb.ADMIN, ""))
    ),
    FrameKind.LIST_SCHEDULES: Case(messages.ListSchedules, (), answered=True),
    FrameKind.FOLLOW: Case(lambda: Follow("c", "n", "n.1"), ((Verb.ADMIN, ""),)),
    FrameKind.REPLICA_ENDS: None,
    FrameKind.APPLIED: None,
    FrameKind.VOUCH: Case(messages.Vouch, ((Verb.ADMIN, ""),)),
    FrameKind.CONFIG: Case(ConfigRequest, ((Verb.ADMIN, ""),)),
    FrameKind.TRACES: Case(ListTraces, (), answered=True),
    FrameKind.PIPELINE_RUN: Case(
        lambda: PipelineRun(name="pipeline.p", pipeline="p", started_us=1, state="done"),
        ((Verb.GROUP, "pipeline.p"),),
    ),
    FrameKind.REMOVE_SCHEDULE: Case(lambda: messages.RemoveSchedule("s"), ((Verb.SCHEDULE, "s"),)),
}
CASES = {kind: case for kind, case in NATIVE.items() if case is not None}


def test_every_frame_of_a_client_has_its_verbs_here() -> None:
    from_client = {kind for kind in FrameKind if kind < FrameKind.WELCOME}
    assert set(NATIVE) == from_client
    assert set(HANDLERS) <= from_client


async def _ask(peer: Peer, kind: FrameKind, case: Case) -> Any:
    # A COMMIT with a number is one of a group's member.
    aux = 0 if kind is FrameKind.COMMIT else 7
    return await peer.ask(kind, case.message() if case.message else None, aux=aux)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.name)
async def test_a_request_is_refused_unless_each_of_its_verbs_is_allowed(kind: FrameKind) -> None:
    case = CASES[kind]
    rules = Rules()
    async with ruled(rules) as served:
        topic = served.node.core.create_topic(T, {"durability": "memory"})
        if kind is FrameKind.FETCH:
            case = case._replace(message=lambda: messages.Fetch(topic.number, 0, 0))
        before = {topic.name for topic in served.node.core.catalog}
        for allowed in range(len(case.asked)):
            # All but one verb.
            rules.allowed = {}
            for at, (verb, name) in enumerate(case.asked):
                if at != allowed:
                    rules.allowed.setdefault(verb, []).append(name)
            peer = await served.greeted()
            rules.asked.clear()
            answer = await _ask(peer, kind, case)
            assert case.asked[allowed] in rules.asked
            if case.answered:
                assert answer.kind is FrameKind.OK
            else:
                assert answer.failure.code == "forbidden"
        assert {topic.name for topic in served.node.core.catalog} == before
        rules.allowed = {}
        for verb, name in case.asked:
            rules.allowed.setdefault(verb, []).append(name)
        peer = await served.greeted()
        rules.asked.clear()
        answer = await _ask(peer, kind, case)
        assert set(rules.asked) == {*case.asked, *case.looked_at}
        assert answer.kind is not FrameKind.ERROR or answer.failure.code != "forbidden"
        assert {who.listener for who in rules.who} <= {"native"}


async def test_a_batch_for_a_topic_that_was_never_opened_is_refused() -> None:
    """A client can send the number of any topic."""
    rules = Rules(publish="mine")
    async with ruled(rules) as served:
        core = served.node.core
        mine, other = (core.create_topic(n, {"durability": "memory"}) for n in ("mine", "other"))
        peer = await served.greeted()
        await peer.send(
            one_message(other.number) + one_message(mine.number) + one_message(other.number)
        )
        for _ in range(2):
            refused = (await peer.until(FrameKind.REFUSED)).read(messages.Refused)
            assert (refused.number, refused.code) == (other.number, "forbidden")
        assert (await peer.publish(one_message(mine.number))).topic == mine.number
        await served.until(lambda: mine.partitions[0].visible_end == 2)
        assert other.partitions[0].visible_end == 0
        # One answer a topic, however many batches come.
        assert len(rules.asked) == 2


async def test_a_changed_permission_holds_for_a_topic_that_is_open() -> None:
    rules = Rules(publish="mine")
    async with ruled(rules) as served:
        mine = served.node.core.create_topic("mine", {"durability": "memory"})
        peer = await served.greeted()
        await peer.publish(one_message(mine.number))
        rules.allowed.clear()
        served.node.core.permissions_changed()
        await peer.send(one_message(mine.number))
        refused = (await peer.until(FrameKind.REFUSED)).read(messages.Refused)
        assert refused.code == "forbidden"
        assert mine.partitions[0].visible_end == 1


async def test_a_deleted_topic_takes_no_more_from_who_was_allowed_to_publish() -> None:
    rules = Rules(publish="mine")
    async with ruled(rules) as served:
        core = served.node.core
        mine = core.create_topic("mine", {"durability": "memory"})
        peer = await served.greeted()
        await peer.publish(one_message(mine.number))
        core.delete_topic("mine")
        await peer.send(one_message(mine.number))
        refused = (await peer.until(FrameKind.REFUSED)).read(messages.Refused)
        assert refused.code == "topic_not_found"
        assert mine.partitions[0].next_offset == 1


async def test_a_transaction_stages_only_what_may_be_published() -> None:
    rules = Rules(publish="mine")
    async with ruled(rules) as served:
        core = served.node.core
        mine, other = (core.create_topic(n, {"durability": "memory"}) for n in ("mine", "other"))
        peer = await served.greeted()
        begun = await peer.ask(FrameKind.BEGIN_TRANSACTION, messages.BeginTransaction())
        ticket = begun.read(messages.TransactionBegun).ticket
        for number, allowed in ((mine.number, True), (other.number, False)):
            staged = bytes.fromhex(ticket) + encode_batch([b"x"], topic=number)
            await peer.send(frame(FrameKind.STAGE, staged, request=9))
            answer = await peer.frame()
            assert answer is not None
            assert (answer.kind is FrameKind.OK) is allowed
        outcome = await peer.ask(FrameKind.COMMIT_TRANSACTION, messages.CommitTransaction(ticket))
        assert outcome.read(messages.TransactionCommitted).records == 1
        assert other.partitions[0].visible_end == 0


async def test_a_delayed_message_needs_the_permission_for_its_topic(tmp_path: Path) -> None:
    rules = Rules(publish="mine")
    async with ruled(rules, tmp_path) as served:
        peer = await served.greeted()
        opened = await peer.ask(
            FrameKind.OPEN_TOPIC, messages.OpenTopic(fanlog_topic := "_fanlog.scheduled")
        )
        number = opened.read(messages.TopicOpened).number
        assert fanlog_topic not in [name for _, name in rules.asked]
        for count in (1, 3000):  # checked on the loop, and in a thread
            values = [encode_delayed(Delayed("mine", b"x"))] * (count - 1)
            values.append(encode_delayed(Delayed("other", b"x")))
            await peer.send(
                encode_batch(
                    values,
                    keys=[record_key(1, f"id-{n}") for n in range(count)],
                    event_times_us=[-3_600_000_000] * count,
                    topic=number,
                )
            )
            refused = (await peer.until(FrameKind.REFUSED)).read(messages.Refused)
            assert refused.code == "forbidden"
            assert "'other'" in refused.message


async def test_a_delayed_message_is_replaced_only_by_who_may_change_it(tmp_path: Path) -> None:
    rules = Rules(publish="mine")
    async with ruled(rules, tmp_path) as served:
        peer = await served.greeted()
        opened = await peer.ask(FrameKind.OPEN_TOPIC, messages.OpenTopic("_fanlog.scheduled"))
        number = opened.read(messages.TopicOpened).number

        async def delay(nonce: int, id: str) -> None:
            await peer.send(
                encode_batch(
                    [encode_delayed(Delayed("mine", b"x"))],
                    keys=[record_key(nonce, id)],
                    event_times_us=[-3_600_000_000],
                    topic=number,
                )
            )

        await delay(1, "theirs")
        await peer.until(FrameKind.ACK)
        schedule = served.node.core.schedule
        while schedule.pending.find(b"theirs") is None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)
        # Another under the same id would take the place of it.
        await delay(2, "theirs")
        refused = (await peer.until(FrameKind.REFUSED)).read(messages.Refused)
        assert refused.code == "forbidden"
        assert (Verb.SCHEDULE, "theirs") in rules.asked
        waits = schedule.pending.find(b"theirs")
        assert waits is not None
        assert waits.nonce == 1
        # The same message again, a new id, and who may.
        for nonce, id in ((1, "theirs"), (3, "new")):
            await delay(nonce, id)
            await peer.until(FrameKind.ACK)
        rules.allowed[Verb.SCHEDULE] = ["theirs"]
        served.node.core.permissions_changed()
        await delay(4, "theirs")
        await peer.until(FrameKind.ACK)


async def test_a_pattern_reads_only_the_topics_that_may_be_read() -> None:
    """The authority has said yes to the pattern, and is asked about each topic as well."""
    rules = Rules(subscribe="a.* a.open a.later", publish=">", describe=">")
    async with ruled(rules) as served:
        rules.allowed[Verb.SUBSCRIBE] = ["a.*"]
        refusing = rules.authorize

        def authorize(who: Identity, verb: Verb, name: str, /) -> None:
            refusing(who, verb, name)
            if "secret" in name and verb is Verb.SUBSCRIBE:
                raise forbidden(who, verb, name)

        rules.authorize = authorize  # type: ignore[method-assign]
        for name in ("a.open", "a.secret"):
            served.node.core.create_topic(name, {"durability": "memory"})
        async with served.client() as client, client.subscribe("a.*", start="earliest") as reader:
            for name in ("a.secret", "a.secret2", "a.open", "a.later"):
                await client.publish(name, name)
            got = {(await reader.next(PATIENCE_SECONDS)).topic for _ in range(2)}
            assert got == {"a.open", "a.later"}
            served.node.core.delete_topic("a.secret")
            await client.publish("a.open", "again")
            assert (await reader.next(PATIENCE_SECONDS)).value == b"again"
            with pytest.raises(ForbiddenError, match=r"'b\.>'"):
                async with client.subscribe("b.>"):
                    raise AssertionError("it may not be read")


async def test_lists_leave_out_what_may_not_be_seen() -> None:
    rules = Rules(describe="mine", group="mine", publish=">", schedule=">")
    async with ruled(rules) as served:
        for name in ("mine", "other"):
            served.node.core.create_topic(name, {"durability": "memory"})
        async with served.client() as client:
            assert [topic.name for topic in await client.topics()] == ["mine"]


async def test_a_refused_publish_raises_the_error_in_the_client() -> None:
    async with ruled(Rules()) as served, served.client() as client:
        with pytest.raises(ForbiddenError, match="Ask the operator for the permission 'publish'"):
            await client.publish("t", b"x")


async def test_signals_between_processes_need_the_verb_admin() -> None:
    rules = Rules(publish=">", subscribe=">", describe=">", manage=">")
    signals = "_fanlog.signals"
    async with ruled(rules) as served, served.client() as client:
        with pytest.raises(ForbiddenError, match="'admin'"):
            await client.publish(signals, b"x", key="web")
        with pytest.raises(ForbiddenError, match="'admin'"):
            async with client.subscribe(signals):
                raise AssertionError("it may not be read")
        number = served.node.core.open_topic(signals, create=True).number
        peer = await served.greeted()
        await peer.send(one_message(number))
        refused = (await peer.until(FrameKind.REFUSED)).read(messages.Refused)
        assert refused.code == "forbidden"
        rules.allowed[Verb.ADMIN] = [""]
        async with served.client() as operator:
            await operator.publish(signals, b"x", key="web")


async def test_the_program_around_an_embedded_broker_is_not_asked() -> None:
    rules = Rules()

    class Embedded(fanlog.Broker):
        def _make_node(self) -> Node:
            return Node(None, Config(), authority=rules)

    async with Embedded() as broker:
        await broker.publish("t", b"x")
    assert not rules.asked


# The Redis listener

NO_CHANNEL = b"-NOPERM No permissions to access a channel\r\n"
# Words of a command, what is asked, and whether it is refused without it.
REDIS: dict[str, tuple[tuple[str, ...], tuple[Asked, ...], bytes]] = {
    "publish": (("publish", "c", "x"), ((Verb.PUBLISH, "c"),), NO_CHANNEL),
    "spublish": (("spublish", "c", "x"), ((Verb.PUBLISH, "%/c"),), NO_CHANNEL),
    "subscribe": (("subscribe", "c"), ((Verb.SUBSCRIBE, "c"),), NO_CHANNEL),
    "ssubscribe": (("ssubscribe", "c"), ((Verb.SUBSCRIBE, "%/c"),), NO_CHANNEL),
    "psubscribe": (("psubscribe", "a.b*"), ((Verb.SUBSCRIBE, "a.>"),), NO_CHANNEL),
    "pubsub|channels": (("pubsub", "channels"), ((Verb.DESCRIBE, "c"),), b"*0\r\n"),
    "pubsub|shardchannels": (("pubsub", "shardchannels"), ((Verb.DESCRIBE, "%/c"),), b"*0\r\n"),
    "pubsub|numsub": (
        ("pubsub", "numsub", "c"),
        ((Verb.DESCRIBE, "c"),),
        b"*2\r\n$1\r\nc\r\n:0\r\n",
    ),
    "pubsub|shardnumsub": (
        ("pubsub", "shardnumsub", "c"),
        ((Verb.DESCRIBE, "%/c"),),
        b"*2\r\n$1\r\nc\r\n:0\r\n",
    ),
    "pubsub|numpat": (("pubsub", "numpat"), ((Verb.DESCRIBE, ""),), b"pubsub|numpat"),
    "info": (("info",), ((Verb.DESCRIBE, ""),), b"info"),
    "flushall": (("flushall",), ((Verb.ADMIN, ""),), b"flushall"),
    "flushdb": (("flushdb",), ((Verb.ADMIN, ""),), b"flushdb"),
    "client|list": (("client", "list"), ((Verb.ADMIN, ""),), b"client|list"),
    "client|kill": (("client", "kill", "id", "99"), ((Verb.ADMIN, ""),), b"client|kill"),
    "config|get": (("config", "get", "*"), ((Verb.ADMIN, ""),), b"config|get"),
    "config|set": (("config", "set", "timeout", "1"), ((Verb.ADMIN, ""),), b"config|set"),
    "config|resetstat": (("config", "resetstat"), ((Verb.ADMIN, ""),), b"config|resetstat"),
    **{
        f"acl|{words[1]}": (words, ((Verb.ADMIN, ""),), f"acl|{words[1]}".encode())
        for words in (
            ("acl", "deluser", "u"),
            ("acl", "dryrun", "default", "ping"),
            ("acl", "getuser", "u"),
            ("acl", "list"),
            ("acl", "load"),
            ("acl", "log"),
            ("acl", "save"),
            ("acl", "setuser", "u"),
            ("acl", "users"),
        )
    },
}
# They are about the connection itself, about what it follows already, or say what commands are.
FREE = {
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
    "ping",
    "echo",
    "quit",
    "reset",
    "hello",
    "auth",
    "select",
    "command",
    "time",
    "multi",
    "exec",
    "discard",
    "pubsub|help",
    "config|help",
    *(f"acl|{name}" for name in ("cat", "genpass", "help", "whoami")),
    *(f"client|{name}" for name in COMMANDS["client"].subcommands if name not in ("list", "kill")),
    *(f"command|{name}" for name in COMMANDS["command"].subcommands),
}


def _names() -> set[str]:
    names: set[str] = set()
    for name, command in COMMANDS.items():
        parts = command.subcommands
        names |= {part.name for part in parts.values()}
        # A container alone is no command, except COMMAND.
        if not parts or name == "command":
            names.add(name)
    return names


def test_every_redis_command_has_its_verb_here() -> None:
    assert set(REDIS) | FREE == _names()
    assert not set(REDIS) & FREE


@pytest.mark.parametrize("name", REDIS)
async def test_a_redis_command_is_refused_unless_its_verb_is_allowed(name: str) -> None:
    words, asked, reply = REDIS[name]
    if not reply.startswith((b"-", b"*")):
        reply = b"-NOPERM User default has no permissions to run the '%b' command\r\n" % reply
    rules = Rules(subscribe="c %/c")
    async with ruled(rules) as served:
        port = served.node.listen_redis().port

        def talk() -> None:
            with Wire(port) as follower, Wire(port) as wire:
                if name.startswith("pubsub|"):
                    follower.send("subscribe", "c")
                    follower.take_until(b":1\r\n")
                    follower.send("ssubscribe", "c")
                    follower.take_until(b":1\r\n")
                rules.allowed.clear()
                rules.asked.clear()
                wire.send(*words)
                wire.expect(reply)
                assert set(rules.asked) == set(asked)
                for verb, about in asked:
                    rules.allowed[verb] = [about]
                with Wire(port) as again:
                    again.send(*words)
                    # Some commands are not there for anybody: that is another error.
                    assert again.take(4) not in (b"", b"-NOP")

        await asyncio.to_thread(talk)
        assert {(who.listener, who.address != "") for who in rules.who} == {("redis", True)}


async def test_a_queued_command_is_refused_when_it_is_queued_or_when_it_runs() -> None:
    rules = Rules(publish="a.>")
    async with ruled(rules) as served:
        port = served.node.listen_redis().port

        def talk() -> None:
            with Wire(port) as wire:
                for words in (("multi",), ("publish", "a.x", "1"), ("publish", "b", "2")):
                    wire.send(*words)
                    wire.take_until(b"\r\n")
                wire.send("exec")
                wire.expect(b"*2\r\n:0\r\n" + NO_CHANNEL)
                wire.send("multi")
                wire.take_until(b"\r\n")
                wire.send("info")
                assert wire.take_until(b"\r\n").startswith(b"-NOPERM")
                wire.send("exec")
                assert wire.take_until(b"\r\n").startswith(b"-EXECABORT")

        await asyncio.to_thread(talk)


async def test_a_redis_pattern_reads_only_the_channels_that_may_be_read() -> None:
    rules = Rules(subscribe="a.>", publish=">")
    async with ruled(rules) as served:
        core, port = served.node.core, served.node.listen_redis().port
        for name in ("a.x", "a.y"):
            core.create_topic(name, {"durability": "memory"})

        def talk() -> None:
            with Wire(port) as follower, Wire(port) as wire:
                follower.send("psubscribe", "a.*")
                follower.take_until(b":1\r\n")
                # The rules are narrower now, as they are if a topic is denied on its own.
                rules.allowed[Verb.SUBSCRIBE] = ["a.x", "a.new", "a.>"]
                refusing = rules.authorize

                def authorize(who: Identity, verb: Verb, name: str, /) -> None:
                    refusing(who, verb, name)
                    if name == "a.secret" and verb is Verb.SUBSCRIBE:
                        raise forbidden(who, verb, name)

                rules.authorize = authorize  # type: ignore[method-assign]
                for name in ("a.secret", "a.new"):
                    wire.send("publish", name, "x")
                    wire.take_until(b"\r\n")
                got = follower.take_until(b"$1\r\nx\r\n")
                assert b"a.new" in got
                assert b"secret" not in got

        await asyncio.to_thread(talk)


@pytest.mark.parametrize(
    ("glob", "pattern"),
    [
        (b"*", ">"),
        (b"a*", ">"),
        (b"a.b*", "a.>"),
        (b"a.b.[xy]", "a.b.>"),
        (b"a.?", "a.>"),
        (b"a.\\*", "a.>"),
        (b"plain.name", "plain.name"),
        (b"_fanlog.*", "%5Ffanlog.>"),
    ],
)
def test_a_glob_is_asked_for_as_the_narrowest_pattern_over_it(glob: bytes, pattern: str) -> None:
    assert pattern_over(glob) == pattern


def test_an_identity_is_plain_data() -> None:
    who = Identity("ann", "10.0.0.1:5", "web", "c1")
    assert msgspec.json.decode(msgspec.json.encode(who), type=Identity) == who


async def test_the_server_api_of_web_listeners_needs_the_verb_admin() -> None:
    async with ruled(Rules(publish=">")) as served, served.client() as client:
        with pytest.raises(ForbiddenError, match="'admin'"):
            await client.web.presence("t")
        with pytest.raises(ForbiddenError, match="'admin'"):
            await client.web.disconnect("ann")
        await client.web.send_to_user("ann", b"x")
