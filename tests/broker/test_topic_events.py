"""Topic events: who is called, in which order, and what a remade topic looks like."""

from __future__ import annotations

import fanlog
from fanlog.broker.messages.topic_events import TopicEvents
from fanlog.broker.messages.topics import BrokerTopic, Partition
from tests.broker.stage import Stage, stage
from tests.edge.stage import broker_at, edge_of, until


class Log:
    """Subscribes to everything but `remade`, and notes what it sees."""

    def __init__(self, events: TopicEvents) -> None:
        self.seen: list[str] = []
        events.subscribe(
            created=lambda topic: self.seen.append(f"created {topic.name}"),
            grown=self._grown,
            altered=lambda topic: self.seen.append(f"altered {topic.name}"),
            removed=lambda topic: self.seen.append(f"removed {topic.name}"),
            deleted=lambda topic: self.seen.append(f"deleted {topic.name}"),
        )

    def _grown(self, topic: BrokerTopic, new: list[Partition]) -> None:
        self.seen.append(f"grown {topic.name} by {len(new)}")


def made(on: Stage, name: str) -> BrokerTopic:
    return on.core.create_topic(name, {})


def test_a_later_subscriber_is_called_after_the_earlier_ones() -> None:
    with stage() as on:
        order: list[str] = []
        for name in ("first", "second"):
            on.core.events.subscribe(created=lambda _, name=name: order.append(name))
        made(on, "t")
        assert order == ["first", "second"]


def test_a_topic_is_created_grown_altered_removed_and_deleted() -> None:
    with stage() as on:
        log = Log(on.core.events)
        made(on, "t")
        on.core.grow_topic("t", 3, lambda _: None)
        on.run()
        on.core.alter_topic("t", {"retention_seconds": 60}, lambda _: None)
        on.run()
        on.core.delete_topic("t")
        assert log.seen == ["created t", "grown t by 2", "altered t", "removed t", "deleted t"]


def test_the_last_messages_are_shown_between_removed_and_deleted() -> None:
    with stage() as on:
        topic = made(on, "t")
        ends: list[int] = []

        def note(topic: BrokerTopic) -> None:
            assert on.core.catalog.find("t") is None
            ends.append(topic.partitions[0].visible_end)

        on.core.events.subscribe(removed=note, deleted=note)
        on.publish("t", [b"a", b"b"])
        assert topic.partitions[0].visible_end == 0
        on.core.delete_topic("t")
        assert ends == [0, 2]


def test_a_remade_topic_is_deleted_and_created_for_those_who_know_no_epochs() -> None:
    with stage() as on:
        old, new = made(on, "old"), made(on, "new")
        events = TopicEvents()
        log = Log(events)
        remade: list[tuple[BrokerTopic, BrokerTopic | None, int]] = []
        events.subscribe(
            created=lambda _: remade.clear(),
            remade=lambda *event: remade.append(event),
        )
        events.remade(old, new, 7)
        assert log.seen == ["deleted old", "created new"]
        events.remade(old, None, 8)
        assert log.seen[2:] == ["deleted old"]
        assert remade == [(old, new, 7), (old, None, 8)]


async def test_the_mirrors_of_an_edge_have_topic_events() -> None:
    async with broker_at() as broker:
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with edge_of(url) as edge, fanlog.connect(edge.url) as client:
            log = Log(edge.node.edge_core.events)
            async with client.subscribe("t"):
                await broker.create_topic("t")
                await until(lambda: "created t" in log.seen)
                await broker.grow_topic("t", 2)
                await until(lambda: "grown t by 1" in log.seen)
                await broker.delete_topic("t")
                await until(lambda: "deleted t" in log.seen)
            assert log.seen == ["created t", "grown t by 1", "removed t", "deleted t"]
