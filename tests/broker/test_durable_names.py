"""Durable names and the numbers of topics: a position never applies to another topic that has got
the name of its own, whatever a power cut has undone."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from fanlog.errors import FencedError
from fanlog.format.batch import encode_batch
from fanlog.format.messages import Position
from tests.broker.stage import Stage, stage


def commit(on: Stage, name: str, offset: int, topic: str = "t", number: int = 0) -> None:
    position = Position(topic, 0, offset, on.core.epoch, number)
    on.core.commit_positions(name, [position])
    on.run()


def fill(on: Stage, count: int, topic: str = "t") -> None:
    on.publish(topic, [b"%d" % i for i in range(count)])
    on.run()


def offset_of(on: Stage, name: str) -> int | None:
    found = on.core.durable.position(name, "t", 0)
    return None if found is None else found.offset


def ledger(data: Path) -> Path:
    (found,) = (data / "topics").glob("*-_fanlog.cursors")
    return found / "0"


@pytest.fixture
def lost_deletion(data: Path, tmp_path: Path) -> Path:
    """A folder whose topic was deleted and made again. The power was cut then, and the ledger of
    positions is as it was before the deletion."""
    kept = tmp_path / "ledger"
    with stage(data) as on:
        fill(on, 100)
        commit(on, "reader", 100)
        shutil.copytree(ledger(data), kept)
        on.core.delete_topic("t")
        fill(on, 200)
    shutil.rmtree(ledger(data))
    shutil.copytree(kept, ledger(data))
    return data


async def test_a_position_of_a_deleted_topic_does_not_come_back(lost_deletion: Path) -> None:
    with stage(lost_deletion) as on:
        assert offset_of(on, "reader") is None
        assert on.core.durable.positions("reader") == ()
        assert on.core.durable.names_in("t") == set()
        assert on.core.durable.count == 0
        peer = await on.subscribe("t", durable="reader")
        on.run()
        assert peer.offsets == list(range(200))
        assert peer.gaps == []


def test_a_new_commit_takes_the_place_of_a_position_that_came_back(lost_deletion: Path) -> None:
    with stage(lost_deletion) as on:
        commit(on, "reader", 7)
    with stage(lost_deletion) as on:
        assert offset_of(on, "reader") == 7
        assert on.core.durable.count == 1


def test_a_position_of_a_topic_that_is_gone_is_forgotten_at_the_next_start(data: Path) -> None:
    with stage(data) as on:
        fill(on, 10)
        commit(on, "reader", 10)
        (folder,) = (data / "topics").glob("*-t")
    shutil.rmtree(folder)
    with stage(data) as on:
        assert list(on.core.durable.names()) == []


def test_a_position_of_a_topic_that_can_be_repaired_is_kept(data: Path) -> None:
    with stage(data) as on:
        fill(on, 10)
        commit(on, "reader", 10)
    (description,) = (data / "topics").glob("*-t/topic.json")
    content = description.read_bytes()
    description.write_bytes(b"{")
    with stage(data) as on:
        commit_elsewhere(on)
    description.write_bytes(content)
    with stage(data) as on:
        assert offset_of(on, "reader") == 10


def commit_elsewhere(on: Stage) -> None:
    fill(on, 1, "other")
    commit(on, "reader", 1, "other")


def test_an_entry_from_before_numbers_were_kept_still_counts(data: Path) -> None:
    encode = msgspec.msgpack.encode
    with stage(data) as on:
        fill(on, 10)
        commit(on, "reader", 3)
        partition = on.core.catalog.get("_fanlog.cursors").partitions[0]
        old = encode_batch([encode((7, 1))], keys=[encode(("reader", "t", 0))])
        on.core.internal.write_internal(partition, old, None)
    with stage(data) as on:
        assert offset_of(on, "reader") == 7


def test_what_was_read_of_a_deleted_topic_is_not_committed_for_the_next_one(data: Path) -> None:
    with stage(data) as on:
        fill(on, 100)
        old = on.core.catalog.get("t").number
        on.core.delete_topic("t")
        fill(on, 200)
        with pytest.raises(FencedError, match="another topic 't', which was deleted"):
            commit(on, "reader", 100, number=old)
        assert offset_of(on, "reader") is None
        commit(on, "reader", 100, number=on.core.catalog.get("t").number)
        assert offset_of(on, "reader") == 100
