"""A Redis session without a socket, on a broker whose turns and syncs the test hands out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from fanlog.broker.slices import SLICE_US
from fanlog.config import RedisOptions
from fanlog.errors import LogFailedError
from fanlog.format.resp import PipelineReader
from fanlog.listeners.redis.peer import ServerState
from fanlog.listeners.redis.pubsub import PubSub
from fanlog.listeners.redis.session import RedisSession
from tests.broker.stage import Peer, Stage, stage
from tests.listeners.redis.wire import command, push


class Wireless(Peer):
    """A peer's connection. What the session wrote and what it was sent stand in one order."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = False
        self.proceeds = 0
        self.heard_at = 0.0

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self.kept))

    def write(self, data: bytes) -> None:
        if self.blocked:
            self.kept.append(data)
        else:
            self.taken += data

    def finish(self, why: str = "") -> None:
        self.finished = True

    def crowded(self) -> bool:
        return False

    def later(self, seconds: float, call: Callable[[], None]) -> None: ...

    def proceed_soon(self) -> None:
        self.proceeds += 1

    def heard(self) -> bytes:
        """What came since it was last asked."""
        heard, self.taken = self.taken, b""
        return heard


class Desk:
    """A listener's insides, and sessions on it."""

    def __init__(self, made: Stage) -> None:
        self.stage = made
        self.pubsub = PubSub(made.core, RedisOptions(), create_topics=True)
        self._state = ServerState(made.core, RedisOptions(), lambda: 0.0)
        self._pipeline = PipelineReader()

    def session(self) -> tuple[RedisSession, Wireless]:
        wire = Wireless()
        session = RedisSession(
            self.pubsub, self._state, wire, self._pipeline, peer="peer:1", local="local:1"
        )
        self._state.sessions[session.number] = session
        return session, wire


def publish(channel: str, *values: str) -> bytes:
    return b"".join(command("PUBLISH", channel, value) for value in values)


def test_what_one_read_brought_for_a_partition_is_one_batch() -> None:
    with stage() as made:
        desk = Desk(made)
        for name in "ab":
            made.core.create_topic(name, {})
        session, wire = desk.session()
        session.feed(publish("a", "1", "2") + publish("b", "3") + publish("a", "4"))
        assert wire.heard() == b""
        made.run()
        assert wire.heard() == b":0\r\n" * 4
        assert [batch.values for batch in made.fetch("a", 0)] == [[b"1", b"2", b"4"]]
        assert [batch.values for batch in made.fetch("b", 0)] == [[b"3"]]


def test_who_publishes_alone_does_not_wait_for_the_end_of_the_turn() -> None:
    with stage() as made:
        desk = Desk(made)
        made.core.create_topic("a", {})
        (one, wire), (other, _) = desk.session(), desk.session()
        one.feed(publish("a", "1"))
        assert wire.heard() == b""
        made.run()
        wire.heard()
        one.feed(publish("a", "2"))
        assert wire.heard() == b":0\r\n"
        other.feed(publish("a", "3"))
        made.run()
        one.feed(publish("a", "4"))
        other.feed(publish("a", "5"))
        assert wire.heard() == b""
        made.run()
        assert [v for batch in made.fetch("a", 0) for v in batch.values] == [*b"1 2 3 4 5".split()]


async def test_readers_that_join_a_new_topic_in_later_slices_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stage() as made:
        desk = Desk(made)
        readers = [await made.subscribe(target) for target in ("a", "a", ">", ">")]
        session, wire = desk.session()
        with monkeypatch.context() as slow:
            # As on a machine where one of them takes as long as all of them may.
            times = count(0, 10 * SLICE_US)
            slow.setattr(made.runtime, "work_us", lambda: next(times))
            session.feed(publish("a", "1"))
            # One of those that have not joined leaves.
            assert readers[3].feed is not None
            made.core.subscriptions.remove(readers[3].feed)
            session.feed(publish("a", "2"))
            assert made.core.followers_of(made.core.catalog.get("a")) == 3
            made.run()
        assert wire.heard() == b":4\r\n:3\r\n"
        session.feed(publish("a", "3"))
        made.run()
        assert wire.heard() == b":3\r\n"
        assert [len(reader.offsets) for reader in readers] == [3, 3, 3, 0]


def test_what_a_turn_brought_from_many_is_one_batch_and_each_has_its_replies() -> None:
    with stage() as made:
        desk = Desk(made)
        made.core.create_topic("a", {})
        follower, heard = desk.session()
        follower.feed(command("SUBSCRIBE", "a"))
        heard.heard()
        peers = [desk.session() for _ in range(5)]
        for number, (session, _) in enumerate(peers):
            session.feed(publish("a", *(f"{number}{i}" for i in range(number + 1))))
        made.run()
        values = [f"{number}{i}" for number in range(5) for i in range(number + 1)]
        assert [batch.values for batch in made.fetch("a", 0)] == [[v.encode() for v in values]]
        assert heard.heard() == b"".join(push("message", "a", value) for value in values)
        assert [wire.heard() for _, wire in peers] == [b":1\r\n" * (n + 1) for n in range(5)]


def test_many_that_publish_to_several_channels_are_heard_in_one_order() -> None:
    with stage() as made:
        desk = Desk(made)
        for name in "ab":
            made.core.create_topic(name, {})
        follower, heard = desk.session()
        follower.feed(command("SUBSCRIBE", "a", "b"))
        heard.heard()
        (one, _), (other, _) = desk.session(), desk.session()
        one.feed(publish("a", "1") + publish("b", "2"))
        other.feed(publish("a", "3"))
        one.feed(publish("b", "4"))
        made.run()
        order = [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4")]
        assert heard.heard() == b"".join(push("message", *sent) for sent in order)


def test_more_than_a_batch_may_hold_is_handed_in_before_the_turn_ends() -> None:
    with stage() as made:
        desk = Desk(made)
        made.core.create_topic("a", {})
        peers = [desk.session() for _ in range(20)]
        for session, _ in peers:
            session.feed(publish("a", "x" * 50_000))
        made.run()
        batches = made.fetch("a", 0)
        assert len(made.values("a")) == 20
        assert 1 < len(batches[0].values) < 10
        assert [wire.heard() for _, wire in peers] == [b":0\r\n"] * 20


def test_a_topic_that_is_deleted_has_what_was_published_before() -> None:
    with stage() as made:
        desk = Desk(made)
        made.core.create_topic("a", {})
        follower, heard = desk.session()
        follower.feed(command("SUBSCRIBE", "a"))
        heard.heard()
        (one, wire), (other, more) = desk.session(), desk.session()
        one.feed(publish("a", "1"))
        made.core.delete_topic("a")
        other.feed(publish("a", "2"))
        made.run()
        assert (wire.heard(), more.heard()) == (b":1\r\n", b":1\r\n")
        assert heard.heard() == push("message", "a", "1") + push("message", "a", "2")


def test_what_is_refused_is_an_error_for_each_of_those_who_sent_it(data: Path) -> None:
    with stage(data, durability="os") as made:
        desk = Desk(made)
        topic = made.core.create_topic("a", {})
        (one, wire), (other, more), (late, last) = (desk.session() for _ in range(3))
        one.feed(publish("a", "1", "2"))
        other.feed(command("CLIENT", "REPLY", "SKIP") + publish("a", "3") + publish("a", "4"))
        topic.partitions[0].log.fail(LogFailedError("the disk is broken"))
        made.run()
        fault = b"-ERR the disk is broken\r\n"
        assert (wire.heard(), more.heard()) == (fault * 2, fault)
        late.feed(publish("a", "5") + command("PING"))
        made.run()
        assert last.heard() == fault + b"+PONG\r\n"


def test_what_a_connection_published_before_it_ended_is_handed_on(data: Path) -> None:
    with stage(data, durability="fsync") as made:
        desk = Desk(made)
        made.core.create_topic("a", {})
        (one, wire), (other, more) = desk.session(), desk.session()
        one.feed(publish("a", "1"))
        other.feed(publish("a", "2"))
        one.closed()
        made.run()
        made.sync_group.sync()
        made.run()
        assert made.values("a") == [b"1", b"2"]
        assert (wire.heard(), more.heard()) == (b"", b":0\r\n")


def test_the_replies_to_one_large_read_do_not_wait_for_the_next(data: Path) -> None:
    with stage(data, durability="fsync") as made:
        desk = Desk(made)
        made.core.create_topic("a", {})
        session, wire = desk.session()
        large = publish("a", *("x" * 1000 for _ in range(300)))
        session.feed(large)
        made.run()
        first, made.sync_group.waiting = made.sync_group.waiting, []
        session.feed(large)
        made.run()
        made.sync_group.finish(first)
        made.run()
        assert wire.heard() == b":0\r\n" * 300
        made.sync_group.sync()
        made.run()
        assert wire.heard() == b":0\r\n" * 300


def test_a_publisher_that_does_something_else_in_between_is_obeyed_in_order() -> None:
    with stage() as made:
        desk = Desk(made)
        session, wire = desk.session()
        one = publish("a", "1")
        for data, reply in (
            (one, b":0\r\n"),
            (command("MULTI") + one, b"+OK\r\n+QUEUED\r\n"),
            (one, b"+QUEUED\r\n"),
            (command("EXEC"), b"*2\r\n:0\r\n:0\r\n"),
            (one * 3, b":0\r\n" * 3),
            (one[:-5], b""),
            (one[-5:], b":0\r\n"),
            (one, b":0\r\n"),
            (command("CLIENT", "REPLY", "OFF"), b""),
            (one, b""),
            (command("CLIENT", "REPLY", "ON"), b"+OK\r\n"),
            (one, b":0\r\n"),
            (command("SUBSCRIBE", "b"), push("subscribe", "b", 1)),
            (command("PING"), push("pong", "")),
            (command("UNSUBSCRIBE"), push("unsubscribe", "b", 0)),
            (one, b":0\r\n"),
        ):
            session.feed(data)
            made.run()
            assert wire.heard() == reply


def test_replies_behind_a_message_wait_until_it_is_on_disk(data: Path) -> None:
    with stage(data, durability="fsync") as made:
        desk = Desk(made)
        made.core.create_topic("safe", {})
        session, wire = desk.session()
        session.feed(b"PING\r\n" + publish("safe", "1") + b"ECHO x\r\n")
        made.run()
        session.feed(b"ECHO y\r\n")
        assert wire.heard() == b"+PONG\r\n"
        made.sync_group.sync()
        made.run()
        assert wire.heard() == b":0\r\n$1\r\nx\r\n$1\r\ny\r\n"


def test_a_subscription_behind_a_message_waits_for_it_and_then_goes_on(data: Path) -> None:
    with stage(data, durability="fsync") as made:
        desk = Desk(made)
        made.core.create_topic("safe", {})
        session, wire = desk.session()
        session.feed(publish("safe", "1") + command("SUBSCRIBE", "safe") + b"PING\r\n")
        assert session.busy()
        made.run()
        made.sync_group.sync()
        made.run()
        assert wire.heard() == b":0\r\n"
        assert (wire.proceeds, session.busy()) == (1, True)
        session.feed(b"")
        assert wire.heard() == push("subscribe", "safe", 1) + push("pong", "")
        assert not session.busy()


def test_a_log_that_fails_is_an_error_in_its_place_and_the_rest_is_answered(data: Path) -> None:
    with stage(data, durability="fsync") as made:
        desk = Desk(made)
        made.core.create_topic("safe", {})
        made.core.create_topic("loose", {"durability": "memory"})
        session, wire = desk.session()
        session.feed(publish("safe", "1", "2") + publish("loose", "3"))
        made.run()
        made.fail_sync()
        made.run()
        fault = b"-ERR the disk is broken\r\n"
        assert wire.heard() == fault * 2 + b":0\r\n"
        session.feed(publish("safe", "4") + b"PING\r\n")
        made.run()
        assert wire.heard() == fault + b"+PONG\r\n"


def test_the_commands_of_a_blocked_subscriber_wait() -> None:
    with stage() as made:
        desk = Desk(made)
        session, wire = desk.session()
        publisher, _ = desk.session()
        session.feed(command("SUBSCRIBE", "a"))
        wire.heard()
        wire.room = 0
        for value in "12":
            publisher.feed(publish("a", value))
            made.run()
        session.feed(command("PING") + command("UNSUBSCRIBE"))
        assert session.busy()
        wire.drain(made.core)
        session.feed(b"")
        assert wire.heard() == (
            push("message", "a", "1")
            + push("message", "a", "2")
            + push("pong", "")
            + push("unsubscribe", "a", 0)
        )


def test_quit_waits_for_what_is_owed(data: Path) -> None:
    with stage(data, durability="fsync") as made:
        desk = Desk(made)
        made.core.create_topic("safe", {})
        session, wire = desk.session()
        session.feed(publish("safe", "1") + b"QUIT\r\nPING\r\n")
        made.run()
        assert (wire.heard(), wire.finished) == (b"", False)
        made.sync_group.sync()
        made.run()
        assert (wire.heard(), wire.finished) == (b":0\r\n+OK\r\n", True)


def test_whoever_goes_leaves_nothing_behind() -> None:
    with stage() as made:
        desk = Desk(made)
        session, _ = desk.session()
        publisher, _ = desk.session()
        session.feed(command("SUBSCRIBE", "a", "b") + command("PSUBSCRIBE", "*", "a*"))
        session.feed(command("SSUBSCRIBE", "s"))
        publisher.feed(publish("a", "1") + command("SPUBLISH", "s", "x"))
        made.run()
        partition = made.core.catalog.get("a").partitions[0]
        assert (partition.readers, len(made.core.subscriptions)) == (3, 5)
        session.closed()
        assert (partition.readers, len(made.core.subscriptions)) == (0, 0)
        assert partition.audience is not None
        assert not partition.audience.viewed
        assert desk.pubsub.channel_names(None, shard=False) == []
        assert desk.pubsub.pattern_count == 0


def test_a_channel_that_has_grown_is_not_idle_while_one_of_its_partitions_is_used() -> None:
    with stage() as made:
        desk = Desk(made)
        session, wire = desk.session()
        publisher, _ = desk.session()
        session.feed(command("SUBSCRIBE", "a"))
        publisher.feed(publish("a", "1"))
        made.run()
        made.grow("a", 3)
        wire.heard()
        idle = RedisOptions().channel_idle_seconds
        for i in range(5):
            made.publish("a", [b"x"], partition=2)
            made.run()
            desk.pubsub.forget_idle(i * idle)
        assert wire.heard() == push("message", "a", "x") * 5
        for i in range(5, 8):
            desk.pubsub.forget_idle(i * idle)
        assert made.core.catalog.find("a") is None


def test_very_many_names_are_followed_step_by_step() -> None:
    with stage() as made:
        desk = Desk(made)
        session, wire = desk.session()
        names = [f"n{i}" for i in range(1200)]
        session.feed(command("SUBSCRIBE", *names) + command("UNSUBSCRIBE") + command("PING"))
        steps = 0
        while session.busy():
            session.feed(b"")
            steps += 1
        assert steps >= 4
        wanted = b"".join(push("subscribe", name, i) for i, name in enumerate(names, 1))
        wanted += b"".join(push("unsubscribe", name, 1199 - i) for i, name in enumerate(names))
        assert wire.heard() == wanted + b"+PONG\r\n"
