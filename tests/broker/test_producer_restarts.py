"""Exactly once across segments and restarts: a repeat gets its first offset, come what may."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.config import BrokerOptions
from fanlog.model import KIB
from tests.broker.stage import Publisher, Stage, stage
from tests.quick_folders import quick_folder

SEGMENT_BYTES = 64 * KIB
LARGE = bytes(30_000)


def settle(on: Stage) -> None:
    on.run()
    on.sync_group.sync()
    on.run()


def fill_segment(on: Stage, topic: str = "t") -> None:
    """Publishes, as nobody in particular, until there is a new segment."""
    on.core.open_topic(topic, create=True)
    log = on.core.catalog.get(topic).partitions[0].log
    before = log.segment_count
    while log.segment_count <= max(before, 1):
        on.publish(topic, [LARGE])
        settle(on)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_repeat_after_a_roll_and_a_restart_is_stored_once(data: Path, durability: str) -> None:
    """The acknowledgement was lost, the log went on in a new segment, and the broker restarted."""
    with stage(data, durability=durability, segment_bytes=SEGMENT_BYTES) as on:
        on.publish("t", [b"a", b"b"], Publisher(1))
        on.publish("t", [b"c"], Publisher(1), sequence=2)
        settle(on)
        fill_segment(on)
        fill_segment(on)
        end = on.core.catalog.get("t").partitions[0].log.end_offset
    with stage(data, durability=durability, segment_bytes=SEGMENT_BYTES) as on:
        one = Publisher(1)
        on.publish("t", [b"a", b"b"], one)
        on.publish("t", [b"c"], one, sequence=2)
        on.publish("t", [b"d"], one, sequence=3)
        settle(on)
        assert [(a.base_offset, a.duplicate) for a in one.acks] == [(0, 1), (2, 1), (end, 0)]
        assert one.refusals == []
        assert on.values("t").count(b"c") == 1


def test_a_repeat_is_known_after_the_records_themselves_are_deleted(data: Path) -> None:
    with stage(data, segment_bytes=SEGMENT_BYTES) as on:
        on.publish("t", [b"a"], Publisher(1))
        settle(on)
        fill_segment(on)
        partition = on.core.catalog.get("t").partitions[0]
        partition.log.drop_before(partition.log.end_offset)
        assert partition.log.start_offset > 0
    with stage(data, segment_bytes=SEGMENT_BYTES) as on:
        one = Publisher(1)
        on.publish("t", [b"a"], one)
        settle(on)
        assert [(a.base_offset, a.duplicate) for a in one.acks] == [(0, 1)]


def test_a_batch_that_the_new_segment_begins_with_is_in_the_segment_and_not_before_it(
    data: Path,
) -> None:
    """It is counted before the log rolls for it: were it lost in a crash, it must not be known."""
    with stage(data, segment_bytes=SEGMENT_BYTES) as on:
        one = Publisher(1)
        sequence = 0
        on.core.open_topic("t", create=True)
        log = on.core.catalog.get("t").partitions[0].log
        while log.segment_count < 2:
            on.publish("t", [LARGE], one, sequence=sequence)
            settle(on)
            sequence += 1
    newest = max(data.glob("topics/*/0/*.log"))
    newest.write_bytes(b"")
    with stage(data, segment_bytes=SEGMENT_BYTES) as on:
        one = Publisher(1)
        on.publish("t", [LARGE], one, sequence=sequence - 2)
        on.publish("t", [LARGE], one, sequence=sequence - 1)
        settle(on)
        assert [(a.base_offset, a.duplicate) for a in one.acks] == [
            (sequence - 2, 1),
            (sequence - 1, 0),
        ]


def test_no_more_producers_come_back_than_are_remembered(data: Path) -> None:
    with stage(data) as on:
        for i in range(1, 21):
            on.publish("t", [b"x"], Publisher(i))
        settle(on)
    with stage(data, options=BrokerOptions(producers_max=5)) as on:
        producers = on.core.catalog.get("t").partitions[0].producers
        assert sorted(producers or ()) == [16, 17, 18, 19, 20]


Step = tuple[
    Literal["next", "repeat", "fill", "restart", "crash", "lose"],
    int,  # whose batch
    int,  # how many records
    int,  # which one is repeated
]


@given(
    durability=st.sampled_from(["os", "fsync"]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ["next", "next", "next", "repeat", "repeat", "fill", "restart", "crash", "lose"]
            ),
            st.integers(1, 3),
            st.integers(1, 3),
            st.integers(0, 100),
        ),
        max_size=30,
    ),
)
def test_every_record_is_stored_once_through_rolls_and_restarts(
    durability: str, steps: list[Step]
) -> None:
    """Against a model that remembers where each batch went. A crash takes the files as they are;
    `lose` takes the file of producers away, so that the log itself must tell."""
    with quick_folder() as folder, ExitStack() as lives:
        generation = 0
        topic = {"durability": durability, "segment_bytes": SEGMENT_BYTES}
        on = lives.enter_context(stage(folder / "0", **topic))
        on.core.open_topic("t", create=True)
        sent: dict[int, list[tuple[int, list[bytes], int]]] = {1: [], 2: [], 3: []}
        following = {1: 0, 2: 0, 3: 0}
        for what, who, count, which in [*steps, ("restart", 1, 1, 0)]:
            origin = Publisher(who)
            log = on.core.catalog.get("t").partitions[0].log
            if what == "next":
                sequence = following[who]
                values = [b"%d/%d" % (who, sequence + i) for i in range(count)]
                sent[who].append((sequence, values, log.end_offset))
                on.publish("t", values, origin, sequence=sequence)
                settle(on)
                assert [(a.base_offset, a.duplicate) for a in origin.acks] == [
                    (sent[who][-1][2], 0)
                ]
                following[who] += count
            elif what == "repeat" and sent[who]:
                sequence, values, offset = sent[who][which % len(sent[who])]
                on.publish("t", values, origin, sequence=sequence)
                settle(on)
                assert [(a.base_offset, a.duplicate) for a in origin.acks] == [(offset, 1)]
            elif what == "fill":
                fill_segment(on)
            elif what in ("restart", "crash", "lose"):
                before = folder / str(generation)
                generation += 1
                after = folder / str(generation)
                if what == "crash":
                    shutil.copytree(before, after)
                lives.close()
                if what != "crash":
                    before.rename(after)
                if what == "lose":
                    for path in after.glob("topics/*/*/*.producers"):
                        path.unlink()
                on = lives.enter_context(stage(after, **topic))
        expected = [(offset, v) for some in sent.values() for _, v, offset in some]
        stored = [value for _, values in sorted(expected) for value in values]
        assert [value for value in on.values("t") if value != LARGE] == stored
