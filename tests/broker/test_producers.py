"""Exactly once: producers against a model that remembers every record it stored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.broker.messages.producers import Producer
from fanlog.config import BrokerOptions
from fanlog.errors import (
    DiskFullError,
    FencedError,
    FormatError,
    LogFailedError,
    OutOfSequenceError,
    OverloadedError,
)
from fanlog.model import PRODUCER_ID_MAX
from tests.broker.stage import Publisher, no_room, stage

RUNS_MAX = 1000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["next", "other", "take_back"]), st.integers(1, 4), st.integers(0, 30)
        ),
        max_size=40,
    )
)
def test_a_producer_knows_where_each_of_its_records_went(
    steps: list[tuple[str, int, int]],
) -> None:
    producer = Producer(0, 0, 0)
    offsets: list[int] = []  # by sequence
    end = 0
    for what, count, where in steps:
        if what == "next":
            producer.extend(count, end, RUNS_MAX)
            offsets += range(end, end + count)
            end += count
        elif what == "other":
            end += count
        elif offsets:
            # Nothing behind what was not stored is in the log either.
            sequence = where % len(offsets)
            end = offsets[sequence]
            producer.take_back(sequence, end)
            del offsets[sequence:]
    assert producer.next_sequence == len(offsets)
    for sequence, offset in enumerate(offsets):
        assert producer.offset_of(sequence, 1) == offset
    with pytest.raises(OutOfSequenceError, match=f"next is {len(offsets)}"):
        producer.offset_of(len(offsets), 1)
    producer.extend(2, end + 5, RUNS_MAX)
    assert producer.offset_of(len(offsets), 2) == end + 5


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),  # whose batch
            st.sampled_from(["next", "next", "next", "repeat", "gap", "old epoch"]),
            st.integers(1, 3),  # how many records
            st.integers(0, 100),  # which one is repeated
            st.booleans(),  # whether the turn ends behind it
        ),
        max_size=40,
    )
)
def test_every_record_is_stored_once_whatever_producers_repeat(
    steps: list[tuple[int, str, int, int, bool]],
) -> None:
    with stage() as on:
        on.core.open_topic("t", create=True)
        who = {i: Publisher(producer_id=i) for i in (1, 2, 3)}
        sent: dict[int, list[tuple[int, list[bytes]]]] = {1: [], 2: [], 3: []}
        following = {1: 0, 2: 0, 3: 0}
        stored: list[bytes] = []
        expected_acks: dict[int, list[tuple[int, int, int]]] = {1: [], 2: [], 3: []}
        expected_refusals: dict[int, list[tuple[int, int, type]]] = {1: [], 2: [], 3: []}
        where: dict[tuple[int, int], int] = {}
        for i, what, count, which, ends in steps:
            begin = following[i]
            if what == "next":
                values = [b"%d/%d" % (i, begin + j) for j in range(count)]
                on.publish("t", values, who[i], sequence=begin, epoch=1)
                where[i, begin] = len(stored)
                expected_acks[i].append((begin, len(stored), 0))
                sent[i].append((begin, values))
                stored += values
                following[i] += count
            elif what == "repeat" and sent[i]:
                sequence, values = sent[i][which % len(sent[i])]
                on.publish("t", values, who[i], sequence=sequence, epoch=1)
                expected_acks[i].append((sequence, where[i, sequence], 1))
            elif what in ("gap", "old epoch") and sent[i]:
                gap = what == "gap"
                begin += 5 if gap else 0
                on.publish("t", [b"never"], who[i], sequence=begin, epoch=1 if gap else 0)
                expected_refusals[i].append(
                    (begin, following[i], OutOfSequenceError) if gap else (begin, 0, FencedError)
                )
            if ends:
                on.run()
        on.run()
        for i, publisher in who.items():
            got = [(a.first_sequence, a.base_offset, a.duplicate) for a in publisher.acks]
            assert got == expected_acks[i]
            assert [(s, e, type(x)) for s, e, x in publisher.refusals] == expected_refusals[i]
        assert on.values("t") == stored


def test_a_duplicate_of_a_batch_that_is_not_durable_yet_waits_with_it(data: Path) -> None:
    with stage(data, durability="fsync") as on:
        publisher, again = Publisher(1), Publisher(1)
        on.publish("t", [b"x"], publisher)
        on.run()
        on.publish("t", [b"x"], again)
        on.run()
        assert (publisher.acks, again.acks) == ([], [])
        on.sync_group.sync()
        on.run()
        assert [(a.base_offset, a.duplicate) for a in publisher.acks] == [(0, 0)]
        assert [(a.base_offset, a.duplicate) for a in again.acks] == [(0, 1)]


def test_a_duplicate_of_a_batch_that_never_became_durable_is_not_acknowledged(
    data: Path,
) -> None:
    with stage(data, durability="fsync") as on:
        publisher, again = Publisher(1), Publisher(1)
        on.publish("t", [b"x"], publisher)
        on.run()
        on.publish("t", [b"x"], again)
        on.run()
        on.fail_sync()
        on.run()
        assert (publisher.acks, again.acks) == ([], [])
        for one in (publisher, again):
            ((sequence, expected, error),) = one.refusals
            assert (sequence, expected) == (0, 0)
            assert isinstance(error, LogFailedError)


def test_a_duplicate_is_still_recognised_when_the_broker_is_overloaded(data: Path) -> None:
    """Were it refused, the client would give the number to its next message, and that one would
    pass for the duplicate."""
    options = BrokerOptions(pending_bytes_max=64 * 1024)
    with stage(data, options=options, durability="fsync") as on:
        publisher = Publisher(1)
        on.publish("t", [b"first"], publisher)
        on.run()
        on.sync_group.sync()
        on.run()
        on.publish("other", [bytes(100_000)])
        on.run()
        on.publish("t", [b"first"], publisher, sequence=0)
        on.publish("t", [b"second"], publisher, sequence=1)
        on.run()
        on.sync_group.sync()
        on.run()
        assert [(a.base_offset, a.duplicate) for a in publisher.acks] == [(0, 0), (0, 1)]
        ((sequence, expected, error),) = publisher.refusals
        assert (sequence, expected) == (1, 1)
        assert isinstance(error, OverloadedError)
        on.publish("t", [b"third"], publisher, sequence=1)
        on.run()
        on.sync_group.sync()
        on.run()
        assert on.values("t") == [b"first", b"third"]


def test_a_duplicate_is_recognised_in_the_turn_in_which_the_disk_is_full(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data, durability="fsync") as on:
        publisher = Publisher(1)
        on.publish("t", [b"first"], publisher)
        on.run()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_room)
            on.publish("t", [b"first"], publisher)
            on.publish("t", [b"second"], publisher, sequence=1)
            on.run()
        ((sequence, expected, error),) = publisher.refusals
        assert (sequence, expected) == (1, 1)
        assert isinstance(error, DiskFullError)
        assert publisher.acks == []
        on.sync_group.sync()
        on.run()
        assert [(a.base_offset, a.duplicate) for a in publisher.acks] == [(0, 0), (0, 1)]


def test_a_refused_first_batch_still_says_where_a_producer_begins(data: Path) -> None:
    with stage(data, options=BrokerOptions(pending_bytes_max=64 * 1024), durability="fsync") as on:
        publisher = Publisher(9)
        on.publish("other", [bytes(100_000)])
        on.run()
        on.publish("t", [b"a"], publisher, sequence=0)
        on.sync_group.sync()
        on.run()
        on.publish("t", [b"b"], publisher, sequence=1)
        on.run()
        assert [(s, e, x.code) for s, e, x in publisher.refusals] == [
            (0, 0, "overloaded"),
            (1, 0, "out_of_sequence"),
        ]


def test_a_failed_append_takes_every_producer_of_the_turn_back(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        one, two = Publisher(1), Publisher(2)
        for i in range(3):
            on.publish("t", [b"a%d" % i], one, sequence=i)
            on.publish("t", [b"b%d" % i], two, sequence=i)
        on.run()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_room)
            for i in range(3, 5):
                on.publish("t", [b"lost"], one, sequence=i)
                on.publish("t", [b"lost"], two, sequence=i)
            on.run()
        for publisher in (one, two):
            assert [(s, e) for s, e, _ in publisher.refusals] == [(3, 3), (4, 3)]
            assert all(isinstance(e, DiskFullError) for _, _, e in publisher.refusals)
        on.publish("t", [b"a3"], one, sequence=3)
        on.publish("t", [b"b3"], two, sequence=3)
        on.run()
        assert on.values("t") == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2", b"a3", b"b3"]
        assert [a.base_offset for a in one.acks] == [0, 2, 4, 6]


def test_producers_are_known_again_after_a_restart(data: Path) -> None:
    for durability in ("os", "fsync"):
        with stage(data / durability, durability=durability) as on:
            one, two = Publisher(1), Publisher(2)
            for i in range(4):
                on.publish("t", [b"x", b"y"], one, sequence=2 * i)
                on.publish("t", [b"z"], two, sequence=i)
            on.run()
            on.sync_group.sync()
            on.run()
            before = [(a.first_sequence, a.base_offset) for a in (*one.acks, *two.acks)]
        with stage(data / durability, durability=durability) as on:
            one, two = Publisher(1), Publisher(2)
            for i in range(4):
                on.publish("t", [b"x", b"y"], one, sequence=2 * i)
                on.publish("t", [b"z"], two, sequence=i)
            on.run()
            on.sync_group.sync()
            on.run()
            acks = [*one.acks, *two.acks]
            assert [(a.first_sequence, a.base_offset) for a in acks] == before
            assert all(a.duplicate for a in acks)
            on.publish("t", [b"new"], one, sequence=8)
            on.publish("t", [b"gap"], two, sequence=5)
            on.run()
            on.sync_group.sync()
            on.run()
            assert one.acks[-1].base_offset == 12
            assert [(s, e) for s, e, _ in two.refusals] == [(5, 4)]


def test_past_producers_max_the_longest_idle_one_is_forgotten() -> None:
    with stage(options=BrokerOptions(producers_max=3)) as on:
        busy = Publisher(1)
        on.publish("t", [b"x"], busy, sequence=0)
        for i in range(2, 10):
            on.publish("t", [b"x"], Publisher(i), sequence=0)
            on.publish("t", [b"x"], busy, sequence=i - 1)
        on.run()
        on.publish("t", [b"x"], busy, sequence=3)
        on.run()
        assert len(on.core.catalog.get("t").partitions[0].producers or ()) <= 3
        assert busy.acks[-1].duplicate


def test_runs_past_their_limit_are_forgotten_and_said_so() -> None:
    with stage(options=BrokerOptions(producer_runs_max=4)) as on:
        one, two = Publisher(1), Publisher(2)
        for i in range(20):
            on.publish("t", [b"1"], one, sequence=i)
            on.publish("t", [b"2"], two, sequence=i)
        on.run()
        on.publish("t", [b"1"], one, sequence=18)
        on.publish("t", [b"1"], one, sequence=2)
        on.run()
        assert (one.acks[-1].duplicate, one.acks[-1].base_offset) == (1, 36)
        ((sequence, expected, error),) = one.refusals
        assert (sequence, expected, error.code) == (2, 20, "out_of_sequence")


def test_a_newer_epoch_of_a_producer_fences_the_older_one() -> None:
    with stage() as on:
        old, new = Publisher(1), Publisher(1)
        on.publish("t", [b"a"], old, sequence=0, epoch=1)
        on.publish("t", [b"b"], new, sequence=0, epoch=2)
        on.publish("t", [b"c"], old, sequence=1, epoch=1)
        on.publish("t", [b"a"], old, sequence=0, epoch=1)
        on.run()
        assert on.values("t") == [b"a", b"b"]
        assert [a.base_offset for a in new.acks] == [1]
        for _, _, error in old.refusals:
            assert isinstance(error, FencedError)
            assert "superseded" in str(error)
        assert len(old.refusals) == 2


def test_a_newer_epoch_begins_its_numbers_with_zero() -> None:
    with stage() as on:
        one = Publisher(1)
        on.publish("t", [b"a"], one, sequence=0, epoch=1)
        on.publish("t", [b"x"], one, sequence=1, epoch=2)
        on.run()
        assert [(s, e, x.code) for s, e, x in one.refusals] == [(1, 0, "unknown_producer")]
        assert on.values("t") == [b"a"]


# A producer that a partition does not know


def test_a_producer_that_is_not_known_begins_with_zero_or_is_told_to() -> None:
    with stage() as on:
        one = Publisher(1)
        on.publish("t", [b"x"], one, sequence=7)
        on.run()
        assert [(s, e, x.code) for s, e, x in one.refusals] == [(7, 0, "unknown_producer")]
        assert on.values("t") == []
        on.publish("t", [b"x"], one, sequence=0)
        on.publish("t", [b"y"], one, sequence=1)
        on.run()
        assert on.values("t") == [b"x", b"y"]


def test_an_id_of_the_brokers_own_producers_is_refused_from_a_client() -> None:
    with stage() as on:
        with pytest.raises(FormatError, match="one of the broker's own"):
            on.publish("t", [b"x"], Publisher(PRODUCER_ID_MAX + 1))
        on.publish("t", [b"x"], Publisher(PRODUCER_ID_MAX))
        on.run()
        assert on.values("t") == [b"x"]


def test_a_producer_that_was_silent_for_too_long_is_forgotten() -> None:
    idle = 100
    with stage(options=BrokerOptions(producer_idle_seconds=idle)) as on:
        silent, busy = Publisher(1), Publisher(2)
        on.publish("t", [b"x"], silent, sequence=0)
        on.publish("t", [b"x"], busy, sequence=0)
        on.run()
        for i in range(1, 5):
            on.runtime.time_us += idle * 400_000
            on.core.housekeeping()
            on.publish("t", [b"x"], busy, sequence=i)
            on.run()
        # Not before its time: the same is still a repeat.
        on.publish("t", [b"x"], silent, sequence=0)
        on.run()
        assert [a.duplicate for a in silent.acks] == [0, 1]
        for i in range(5, 9):
            on.runtime.time_us += idle * 400_000
            on.core.housekeeping()
            on.publish("t", [b"x"], busy, sequence=i)
            on.run()
        on.publish("t", [b"y"], silent, sequence=1)
        on.run()
        assert [(s, e, x.code) for s, e, x in silent.refusals] == [(1, 0, "unknown_producer")]
        assert busy.refusals == []
