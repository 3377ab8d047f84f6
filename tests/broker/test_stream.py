"""The stream with replicas: nothing is shown, takes effect or is answered before it is
committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fanlog.broker.messages.stream import StreamTurn
from fanlog.broker.messages.topics import Partition
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError, LogFailedError, UnavailableError
from fanlog.format.messages import Position
from fanlog.model import TopicSettings
from tests.broker.deletions import delete_records
from tests.broker.stage import Publisher, Stage, stage


class HandReplicas:
    """Followers that have what the test says."""

    def __init__(self) -> None:
        self.turns: list[StreamTurn] = []
        self.own_synced = 0
        self.refusal: FanlogError | None = None
        self.fault: FanlogError | None = None

    def maybe_refusal(self) -> FanlogError | None:
        return self.refusal

    def holds_up(self) -> bool:
        return False

    def send(self, turn: StreamTurn) -> None:
        self.turns.append(turn)

    def synced(self, position: int) -> None:
        assert position >= self.own_synced
        self.own_synced = position

    def failed(self, fault: FanlogError) -> None:
        self.fault = fault

    def when_confirmed(self, resume: Callable[[], None]) -> None:
        resume()

    def ask(self) -> None:
        pass

    def tombstones_end(self, partition: Partition) -> int:
        return partition.next_offset


def _commit_all(on: Stage) -> None:
    on.settle()
    position = on.core.stream.position
    on.core.stream.advance(position, position)
    on.settle()


def test_what_only_has_to_be_written_waits_for_the_written_position(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="os", replicas=replicas) as on:
        publisher = on.publish("t", [b"x"])
        on.run()
        assert on.values("t") == []
        assert publisher.acks == []
        position = on.core.stream.position
        on.core.stream.advance(position - 1, 0)
        on.run()
        assert on.values("t") == []
        on.core.stream.advance(position, 0)
        on.run()
        assert on.values("t") == [b"x"]
        assert len(publisher.acks) == 1


def test_what_has_to_be_synced_waits_for_this_brokers_sync_and_for_the_others(
    data: Path,
) -> None:
    replicas = HandReplicas()
    with stage(data, durability="fsync", replicas=replicas) as on:
        publisher = on.publish("t", [b"x"])
        on.run()
        position = on.core.stream.position
        assert replicas.own_synced < position
        on.core.stream.advance(position, 0)
        on.sync_group.sync()
        on.run()
        assert replicas.own_synced == position
        assert publisher.acks == []
        on.core.stream.advance(position, position)
        on.run()
        assert len(publisher.acks) == 1
        assert on.values("t") == [b"x"]


def test_topics_in_memory_wait_for_nobody(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="memory", replicas=replicas) as on:
        publisher = on.publish("t", [b"x"])
        on.run()
        assert len(publisher.acks) == 1
        assert replicas.turns == []


def test_a_turn_has_what_it_appended_in_its_order_and_topics_before_that(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="os", replicas=replicas) as on:
        on.publish("a", [b"1"])
        on.publish("b", [b"2"])
        on.publish("a", [b"3", b"4"])
        on.run()
        numbers = [on.core.catalog.get(name).number for name in ("a", "b")]
        events = [event for turn in replicas.turns for event in turn.events]
        assert [(event.number, event.name) for event in events] == list(
            zip(numbers, ("a", "b"), strict=True)
        )
        assert [turn.position for turn in replicas.turns] == [*range(1, len(replicas.turns) + 1)]
        pieces = {(p.topic, p.base, p.next) for turn in replicas.turns for p in turn.pieces}
        assert pieces == {(numbers[0], 0, 3), (numbers[1], 0, 1)}
        assert all(turn.events or turn.pieces for turn in replicas.turns)


async def test_an_offset_commit_takes_effect_when_it_is_committed(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="os", replicas=replicas) as on:
        on.publish("t", [b"x", b"y"])
        on.run()
        _commit_all(on)
        answers: list[FanlogError | None] = []
        on.core.commit_positions("me", [Position("t", 0, 1)])
        on.core.internal.when_durable(answers.append)
        on.settle()
        assert answers == []
        assert on.core.durable.position("me", "t", 0) is None
        _commit_all(on)
        assert answers == [None]
        assert on.core.durable.position("me", "t", 0) is not None


def test_an_answer_waits_for_the_creation_of_its_topic(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="os", replicas=replicas) as on:
        answers: list[FanlogError | None] = []
        on.core.create_topic("t", {})
        on.core.internal.when_durable(answers.append)
        on.settle()
        assert answers == []
        _commit_all(on)
        assert answers == [None]


def test_changes_of_topics_are_a_part_of_the_stream(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="os", replicas=replicas) as on:
        topic = on.core.create_topic("t", {"segment_bytes": 1 << 20})
        on.publish("t", [b"x", b"y", b"z"])
        on.run()
        _commit_all(on)
        replicas.turns.clear()
        on.core.alter_topic("t", {"retention_seconds": 60}, lambda _: None)
        delete_records(on.core, "t", {0: 2})
        on.core.delete_topic("t")
        on.run()
        events = [event for turn in replicas.turns for event in turn.events]
        altered = [e.settings for e in events if isinstance(e.settings, TopicSettings)]
        assert [settings.retention_seconds for settings in altered] == [60]
        assert 2 in [event.start for event in events]
        assert events[-1].deleted
        assert {event.number for event in events} == {topic.number}


def test_with_too_few_replicas_nothing_is_appended(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="os", replicas=replicas) as on:
        on.publish("t", [b"x"])
        on.run()
        _commit_all(on)
        replicas.refusal = UnavailableError("Too few replicas are connected. Try again.")
        publisher = on.publish("t", [b"y"], Publisher(7))
        on.run()
        ((_, _, error),) = publisher.refusals
        assert isinstance(error, UnavailableError)
        for change in (
            lambda: on.core.create_topic("u", {}),
            lambda: on.core.delete_topic("t"),
            lambda: delete_records(on.core, "t", {0: 1}),
            lambda: on.core.commit_positions("me", [Position("t", 0, 1)]),
        ):
            with pytest.raises(UnavailableError):
                change()
        assert on.core.catalog.get("t").partitions[0].log.end_offset == 1
        replicas.refusal = None
        on.publish("t", [b"y"], publisher)
        on.run()
        _commit_all(on)
        assert on.values("t") == [b"x", b"y"]


def test_a_repeated_batch_is_acknowledged_when_the_first_one_is_committed(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="os", replicas=replicas) as on:
        on.publish("t", [b"x"], Publisher(7))
        on.run()
        again = on.publish("t", [b"x"], Publisher(7))
        on.run()
        assert again.acks == []
        _commit_all(on)
        assert [ack.duplicate for ack in again.acks] == [1]
        assert on.values("t") == [b"x"]


def test_a_broker_that_can_not_sync_says_so_and_acknowledges_nothing(data: Path) -> None:
    replicas = HandReplicas()
    with stage(data, durability="fsync", replicas=replicas) as on:
        publisher = on.publish("t", [b"x"])
        on.run()
        on.fail_sync()
        on.run()
        assert isinstance(replicas.fault, LogFailedError)
        assert publisher.acks == []
        assert publisher.refusals


def test_bytes_that_wait_for_replicas_slow_publishers_down(data: Path) -> None:
    replicas = HandReplicas()
    options = BrokerOptions(pending_bytes_pause=1 << 20)
    with stage(data, durability="os", options=options, replicas=replicas) as on:
        for _ in range(3):
            on.publish("t", [bytes(1 << 19)])
        on.run()
        assert on.core.congested()
        _commit_all(on)
        assert not on.core.congested()
        assert on.core.stream.pending_bytes == 0
