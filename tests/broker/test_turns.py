"""The end of a turn: what is committed together, shown together and acknowledged together."""

from __future__ import annotations

from pathlib import Path

import pytest

import fanlog
from fanlog.errors import FormatError
from fanlog.format.batch import encode_batch
from fanlog.format.messages import Position
from fanlog.model import Start
from tests.awaited import awaited
from tests.broker.stage import Peer, Publisher, stage


async def test_one_turn_is_one_commit_a_partition_however_many_publish(data: Path) -> None:
    with stage(data, durability="fsync", partitions=2) as on:
        reader = await on.subscribe("t")
        sends: list[int] = []
        reader_send = reader.send

        def counted(piece: bytes | memoryview) -> int:
            sends.append(len(piece))
            return reader_send(piece)

        reader.send = counted  # type: ignore[method-assign]
        publishers = [Publisher(i) for i in range(1, 6)]
        for publisher in publishers:
            for i in range(4):
                on.publish("t", [b"x"], publisher, sequence=i, partition=0)
                on.publish("t", [b"y"], publisher, sequence=i, partition=1)
        on.run()
        assert len(on.sync_group.waiting) == 2
        on.sync_group.sync()
        on.run()
        assert len(sends) == 2
        assert all(len(publisher.acks) == 8 for publisher in publishers)


def test_a_publishers_acknowledgements_of_a_turn_come_at_once() -> None:
    with stage() as on:
        calls: list[int] = []

        class Counting(Publisher):
            def acknowledge(self, entries: list[bytes]) -> None:
                calls.append(len(entries))
                super().acknowledge(entries)

        publisher = Counting(1)
        for i in range(50):
            on.publish("t", [b"x"], publisher, sequence=i)
        on.run()
        assert calls == [50]
        assert [ack.base_offset for ack in publisher.acks] == list(range(50))


def test_many_batches_in_one_read_are_taken_in_their_order() -> None:
    with stage() as on:
        one = on.core.open_topic("a", create=True).number
        two = on.core.open_topic("b", create=True).number
        publisher = Publisher()
        data = b"".join(encode_batch([b"%d" % i], topic=one if i % 3 else two) for i in range(30))
        cut = data + data[:50]
        assert on.core.take(cut, 0, publisher) == len(data)
        on.run()
        assert on.values("b") == [b"%d" % i for i in range(0, 30, 3)]
        assert on.values("a") == [b"%d" % i for i in range(30) if i % 3]


def test_good_batches_before_damaged_bytes_are_kept() -> None:
    with stage() as on:
        number = on.core.open_topic("t", create=True).number
        good = encode_batch([b"good"], topic=number)
        bad = bytearray(encode_batch([b"bad!"], topic=number))
        bad[-1] ^= 1
        publisher = Publisher()
        with pytest.raises(FormatError):
            on.core.take(good + bytes(bad), 0, publisher)
        on.run()
        assert on.values("t") == [b"good"]
        assert len(publisher.acks) == 1


def test_append_times_never_go_back_even_when_the_clock_does() -> None:
    with stage() as on:
        publisher = Publisher()
        for step in (0, 5, -100, 1, 50):
            on.runtime.time_us += step
            on.publish("t", [b"x"], publisher)
            on.run()
        times = [ack.append_time_us for ack in publisher.acks]
        assert times == sorted(times)
        assert [b.append_time_us for b in on.fetch("t", 0)] == times


def test_the_stamp_holds_offset_epoch_and_topic(data: Path) -> None:
    with stage(data) as on:
        on.publish("t", [b"a", b"b"])
        on.publish("t", [b"c"])
        on.run()
        headers = [batch.header for batch in on.fetch("t", 0)]
        assert [(h.base_offset, h.record_count) for h in headers] == [(0, 2), (2, 1)]
        assert {h.leader_epoch for h in headers} == {on.core.epoch}
        assert {h.topic for h in headers} == {on.core.catalog.get("t").number}
        epoch = on.core.epoch
    with stage(data) as on:
        assert on.core.epoch > epoch


async def test_readers_of_one_piece_get_the_very_same_memory() -> None:
    with stage() as on:
        pieces: list[object] = []

        class Same(Peer):
            def send(self, piece: bytes | memoryview) -> int:
                pieces.append(piece)
                return super().send(piece)

        for _ in range(5):
            await on.subscribe("t", Same())
        on.publish("t", [bytes(1000)])
        on.run()
        assert len(pieces) == 5
        assert len({id(piece) for piece in pieces}) == 1


async def test_deleting_a_topic_while_its_messages_wait_for_the_disk_is_fine(data: Path) -> None:
    with stage(data, durability="fsync") as on:
        publisher = on.publish("t", [b"x"], Publisher(1))
        reader = await on.subscribe("*")
        on.run()
        on.core.delete_topic("t")
        on.sync_group.sync()
        on.run()
        assert reader.lefts == ["t"]
        on.publish("t", [b"new"], publisher)
        on.run()
        on.sync_group.sync()
        on.run()
        assert on.values("t") == [b"new"]
        assert reader.batches[-1].values == [b"new"]


async def test_a_pattern_joins_topics_in_the_moment_they_appear() -> None:
    with stage() as on:
        reader = await on.subscribe("room.>", start=Start("latest"))
        assert reader.joins == []
        on.publish("room.1", [b"a"])
        on.publish("hall.1", [b"b"])
        on.publish("room.2.x", [b"c"])
        on.run()
        assert [joined.name for joined in reader.joins] == ["room.1", "room.2.x"]
        assert sorted(batch.values[0] or b"" for batch in reader.batches) == [b"a", b"c"]


def test_positions_of_durable_names_survive_many_commits_and_a_restart(data: Path) -> None:
    with stage(data) as on:
        on.publish("t", [b"x"] * 12_500)
        on.run()
        for i in range(12_500):
            positions = (Position("t", 0, i, 1),)
            on.core.commit_positions("one", positions)
            on.core.commit_positions("two", (*positions, *positions))
            if not i % 100:
                on.run()
        on.run()
        kept = on.core.catalog.get("_fanlog.cursors").partitions[0].log
        assert kept.start_offset > 0
    with stage(data) as on:
        for name in ("one", "two"):
            (position,) = on.core.durable.positions(name)
            assert (position.offset, position.epoch) == (12_499, 1)


def test_a_broker_without_a_folder_has_another_epoch_after_each_start() -> None:
    with stage() as on:
        first = on.core.epoch
    with stage() as on:
        assert on.core.epoch != first


async def test_a_fetch_that_waited_in_vain_leaves_nothing_behind() -> None:
    async with fanlog.Broker() as broker:
        await broker.create_topic("t", durability="memory")
        for _ in range(5):
            assert (await broker.fetch("t", 0, 0, wait_seconds=0.001)).batches == []
        assert broker._node is not None
        assert not awaited(broker._node.core.catalog.get("t").partitions[0])


def test_who_waits_for_the_disk_goes_on_when_a_ledgers_entry_is_durable(data: Path) -> None:
    with stage(data) as on:
        on.core.open_topic("t", create=True)
        calls: list[str] = []

        def fails() -> None:
            calls.append("fails")
            raise ValueError

        on.core.turns.when_relieved(fails)
        on.core.turns.when_relieved(lambda: calls.append("goes on"))
        on.core.commit_positions("me", [Position("t", 0, 0, on.core.epoch)])
        on.run()
        assert calls == ["fails", "goes on"]


def test_one_that_fails_when_a_ledger_is_durable_keeps_nobody_else_waiting(data: Path) -> None:
    with stage(data) as on:
        on.quick_ledgers = ()
        on.core.open_topic("t", create=True)
        on.core.commit_positions("me", [Position("t", 0, 0, on.core.epoch)])
        calls: list[str] = []

        def fails(_: object) -> None:
            calls.append("fails")
            raise ValueError

        on.core.internal.when_durable(fails)
        on.core.internal.when_durable(lambda _: calls.append("hears"))
        on.run()
        assert calls == []
        on.sync_group.sync()
        assert calls == ["fails", "hears"]
        assert on.core.internal.is_durable
