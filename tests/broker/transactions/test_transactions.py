"""Transactions: invisible before the commit, all of it after, and each id once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.broker.state import ledger
from fanlog.config import BrokerOptions
from fanlog.errors import (
    ChecksumError,
    DiskFullError,
    FormatError,
    InvalidArgumentError,
    LimitError,
    MessageTooLargeError,
    OutOfSequenceError,
    TopicNotFoundError,
    TransactionNotFoundError,
)
from fanlog.format.batch import encode_batch
from fanlog.format.columns import KEYS
from fanlog.format.messages import CommitTransaction, TransactionCommitted
from fanlog.log import staging
from fanlog.model import PRODUCER_ID_MAX
from tests.broker.stage import Peer, Publisher, no_room, stage
from tests.broker.transactions.staging import Outcomes, Staging, checkpoint, producers_of, settle

# Everything goes to a file at once.
SPILLED = BrokerOptions(transaction_memory_bytes=0)
SIZES = pytest.mark.parametrize("options", [BrokerOptions(), SPILLED], ids=["small", "spilled"])


@SIZES
def test_nothing_is_seen_before_the_commit_and_all_of_it_after(
    data: Path, options: BrokerOptions
) -> None:
    with stage(data, options=options, partitions=2) as on:
        on.publish("a", [b"before"])
        settle(on)
        mine = Staging(on)
        mine.stage("a", b"1", b"2")
        mine.stage("a", b"3", partition=1)
        mine.stage("b", b"4", partition=1)
        mine.stage("a", b"5")
        settle(on)
        assert on.values("a") == [b"before"]
        assert on.values("a", 1) == on.values("b", 1) == []
        outcomes = mine.commit()
        settle(on)
        assert outcomes.only == TransactionCommitted(mine.begun.id, already=False, records=5)
        assert on.values("a") == [b"before", b"1", b"2", b"5"]
        assert on.values("a", 1) == [b"3"]
        assert on.values("b", 1) == [b"4"]


def test_one_that_was_begun_before_a_topic_grew_may_stage_into_its_new_partitions(
    data: Path,
) -> None:
    with stage(data) as on:
        on.core.create_topic("a", {})
        mine = Staging(on)
        mine.stage("a", b"1")
        on.grow("a", 2)
        mine.stage("a", b"2", partition=1)
        outcomes = mine.commit()
        settle(on)
        assert outcomes.only.records == 2
    with stage(data) as on:
        assert [on.values("a", i) for i in range(2)] == [[b"1"], [b"2"]]


@SIZES
def test_it_works_in_a_broker_without_a_folder(options: BrokerOptions) -> None:
    with stage(options=options) as on:
        mine = Staging(on, "once")
        mine.stage("a", b"1")
        mine.stage("b", b"2")
        outcomes = mine.commit()
        settle(on)
        assert outcomes.only.records == 2
        assert on.values("a") + on.values("b") == [b"1", b"2"]
        checkpoint(on)
        again = Staging(on, "once")
        assert again.begun.committed
        assert again.commit().only.already


async def test_a_small_one_becomes_visible_in_all_partitions_in_one_turn() -> None:
    with stage(partitions=3) as on:
        seen: list[tuple[int, ...]] = []

        class Watching(Peer):
            def send(self, piece: bytes | memoryview) -> int:
                topics = [on.core.catalog.get(name) for name in ("a", "b")]
                seen.append(tuple(p.visible_end for t in topics for p in t.partitions))
                return super().send(piece)

        for topic in ("a", "b"):
            on.core.create_topic(topic, {})
            await on.subscribe(topic, Watching())
        mine = Staging(on)
        for topic in ("a", "b"):
            for partition in range(3):
                mine.stage(topic, b"x", partition=partition)
        mine.commit()
        settle(on)
        assert seen == [(1,) * 6] * 6


@SIZES
def test_an_aborted_one_leaves_nothing(data: Path, options: BrokerOptions) -> None:
    with stage(data, options=options) as on:
        mine = Staging(on, "x")
        mine.stage("a", b"1")
        mine.abort()
        mine.abort()
        with pytest.raises(TransactionNotFoundError, match="stage again"):
            mine.stage("a", b"2")
        with pytest.raises(TransactionNotFoundError):
            _ = mine.commit().only
        settle(on)
        assert on.values("a") == []
        assert not Staging(on, "x").begun.committed
        assert list(data.glob("transactions/*")) == []


def test_the_first_commit_of_an_id_wins_whatever_the_ticket(data: Path) -> None:
    with stage(data) as on:
        first, second = Staging(on, "day-1"), Staging(on, "day-1", stager=8)
        assert not second.begun.committed
        first.stage("a", b"first")
        second.stage("a", b"second")
        assert second.commit() == []
        late = first.commit()
        assert late == []
        settle(on)
        assert late.only == TransactionCommitted("day-1", already=True)
        assert on.values("a") == [b"second"]
        assert len(on.core.transactions) == 0
        assert first.commit("day-1").only.already
        assert Staging(on, "day-1").begun.committed


@SIZES
def test_nobody_hears_of_a_commit_before_it_is_durable(data: Path, options: BrokerOptions) -> None:
    """The simulation found one that a crash took back."""
    with stage(data, options=options) as on:
        mine = Staging(on, "day-1")
        mine.stage("a", b"1")
        mine.commit()
        on.run()
        again = Staging(on, "day-1")
        assert not again.begun.committed
        again.stage("a", b"2")
        late = again.commit()
        settle(on)
        assert late.only == TransactionCommitted("day-1", already=True)
        assert Staging(on, "day-1").begun.committed
        assert on.values("a") == [b"1"]


def test_an_id_can_be_chosen_with_the_commit(data: Path) -> None:
    with stage(data) as on:
        one, two = Staging(on), Staging(on)
        one.stage("a", b"one")
        two.stage("a", b"two")
        outcomes = one.commit("chosen")
        settle(on)
        assert outcomes.only.id == "chosen"
        assert two.commit("chosen").only.already
        # Its own id was never used.
        with pytest.raises(TransactionNotFoundError):
            _ = one.commit(one.begun.id).only
        assert on.values("a") == [b"one"]


def test_commits_of_one_id_while_its_file_is_synced_are_one_commit(data: Path) -> None:
    with stage(data, options=SPILLED) as on:
        first, second = Staging(on, "x"), Staging(on, "x", stager=8)
        first.stage("a", b"first")
        second.stage("a", b"second")
        outcomes = [first.commit(), first.commit(), second.commit()]
        with pytest.raises(InvalidArgumentError, match="being committed"):
            first.abort()
        settle(on)
        assert [o.only.already for o in outcomes] == [False, True, True]
        assert on.values("a") == [b"first"]
        checkpoint(on)
        assert list(data.glob("transactions/*")) == []


def test_a_ticket_is_shared_by_several_stagers(data: Path) -> None:
    with stage(data) as on:
        mine = Staging(on, "shared")
        theirs = Staging(on, ticket=mine.ticket, stager=8)
        assert theirs.begun == mine.begun
        mine.stage("a", b"m1")
        theirs.stage("a", b"t1")
        mine.stage("a", b"m2")
        theirs.stage("b", b"t2")
        outcomes = theirs.commit()
        settle(on)
        assert outcomes.only.records == 4
        assert on.values("a") == [b"m1", b"t1", b"m2"]
        assert on.values("b") == [b"t2"]


def test_what_is_staged_again_after_a_lost_answer_is_staged_once(data: Path) -> None:
    with stage(data) as on:
        mine = Staging(on)
        one, two = mine.batch("a", [b"1"]), mine.batch("a", [b"2"])
        mine.send(one)
        mine.send(one + two)
        mine.send(two)
        skipped = mine.batch("a", [b"3"])
        with pytest.raises(OutOfSequenceError, match="in order"):
            mine.send(mine.batch("a", [b"4"]))
        mine.send(skipped)
        mine.commit()
        settle(on)
        assert on.values("a") == [b"1", b"2", b"3"]


def test_a_frame_is_staged_whole_or_not_at_all(data: Path) -> None:
    with stage(data, message_bytes_max=1000) as on:
        mine = Staging(on)
        good, large = mine.batch("a", [b"1"]), mine.batch("a", [bytes(6000)])
        with pytest.raises(MessageTooLargeError):
            mine.send(good + large)
        mine.send(good)
        mine.commit()
        settle(on)
        assert on.values("a") == [b"1"]


def test_what_can_not_be_published_can_not_be_staged(data: Path) -> None:
    with stage(data) as on:
        mine = Staging(on)
        batch = mine.batch("a", [b"1"])
        with pytest.raises(ChecksumError):
            mine.send(batch[:-1] + b"x")
        with pytest.raises(FormatError):
            mine.send(batch + batch[:70])
        with pytest.raises(FormatError):
            mine.send(batch[:59] + b"\xff" + batch[60:])
        with pytest.raises(TopicNotFoundError):
            mine.send(encode_batch([b"x"], topic=4000))
        other = Staging(on)
        other.stage("a", b"x")
        other.commit()
        settle(on)
        internal = on.core.catalog.get("_fanlog.transactions").number
        with pytest.raises(TopicNotFoundError):
            mine.send(encode_batch([b"x"], topic=internal))


def test_a_silent_one_runs_out_of_time(data: Path) -> None:
    options = BrokerOptions(transaction_memory_bytes=0, transaction_timeout_seconds_max=100)
    with stage(data, options=options) as on:
        short, long = Staging(on, timeout_seconds=10), Staging(on, timeout_seconds=1e9)
        for _ in range(3):
            on.runtime.time_us += 9_000_000
            short.stage("a", b"x")
            on.core.tick()
        assert len(on.core.transactions) == 2
        on.runtime.time_us += 11_000_000
        on.core.tick()
        with pytest.raises(TransactionNotFoundError, match="time ran out"):
            short.stage("a", b"x")
        long.stage("a", b"y")
        on.runtime.time_us += 101_000_000
        on.core.tick()
        assert len(on.core.transactions) == 0
        assert list(data.glob("transactions/*")) == []
        settle(on)
        assert on.values("a") == []


def test_limits_are_named_when_they_are_reached(data: Path) -> None:
    options = BrokerOptions(
        transactions_max=2, transaction_bytes_max=64 * 1024, transaction_stagers_max=2
    )
    with stage(data, options=options) as on:
        mine = Staging(on)
        other = Staging(on)
        with pytest.raises(LimitError, match="transactions_max"):
            Staging(on)
        other.abort()
        mine.stage("a", bytes(40_000))
        with pytest.raises(LimitError, match="transaction_bytes_max"):
            mine.stage("a", bytes(40_000))
        Staging(on, ticket=mine.ticket, stager=8).stage("a", b"x")
        with pytest.raises(LimitError, match="transaction_stagers_max"):
            Staging(on, ticket=mine.ticket, stager=9).stage("a", b"x")
        with pytest.raises(InvalidArgumentError, match="255 bytes"):
            Staging(on, "x" * 256)
        with pytest.raises(InvalidArgumentError, match="255 bytes"):
            _ = mine.commit("x" * 256).only
        with pytest.raises(InvalidArgumentError, match="timeout"):
            Staging(on, timeout_seconds=0)
        mine.commit()
        settle(on)
        assert on.values("a") == [bytes(40_000), b"x"]


def test_transactions_in_files_leave_descriptors_for_the_logs(data: Path) -> None:
    options = BrokerOptions(transaction_memory_bytes=5000, transaction_files_max=1)
    with stage(data, options=options) as on:
        one, two = (Staging(on, stager=i) for i in range(1, 3))
        for some in (one, two):
            some.stage("a", bytes(3000))
        one.stage("a", bytes(3000))
        with pytest.raises(LimitError, match="transaction_files_max"):
            Staging(on, ticket=two.ticket, stager=9).stage("a", bytes(3000))
        one.commit()
        settle(on)
        two.stage("a", bytes(3000))
        two.commit()
        settle(on)
        assert on.values("a") == [bytes(3000)] * 4


def test_memory_goes_to_files_past_one_transactions_share_and_past_the_total(data: Path) -> None:
    options = BrokerOptions(transaction_memory_bytes=5000, transaction_memory_total_bytes=8000)
    with stage(data, options=options) as on:
        one, two, three = (Staging(on, stager=i) for i in range(1, 4))
        for some in (one, two):
            some.stage("a", bytes(3000))
        assert list(data.glob("transactions/*")) == []
        one.stage("a", bytes(3000))
        assert [p.name for p in data.glob("transactions/*")] == [one.ticket]
        three.stage("a", bytes(4500))
        assert len(list(data.glob("transactions/*"))) == 1
        two.stage("a", bytes(1500))
        assert {p.name for p in data.glob("transactions/*")} == {one.ticket, two.ticket}
        for some in (one, two, three):
            some.commit()
        settle(on)
        assert [len(value or b"") for value in on.values("a")] == [4500, 3000, 3000, 3000, 1500]


def test_a_full_disk_refuses_what_is_staged_and_takes_it_later(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data, options=SPILLED) as on:
        mine = Staging(on)
        mine.stage("a", b"1")
        batch = mine.batch("a", [b"2"])
        with monkeypatch.context() as broken:
            broken.setattr(staging, "write_all", no_room)
            with pytest.raises(DiskFullError):
                mine.send(batch)
            other = Staging(on)
            with pytest.raises(DiskFullError):
                other.stage("a", b"x")
        mine.send(batch)
        outcomes = mine.commit()
        settle(on)
        assert outcomes.only.records == 2
        assert on.values("a") == [b"1", b"2"]


def test_producers_of_transactions_do_not_stay(data: Path) -> None:
    with stage(data, partitions=2) as on:
        on.publish("a", [b"x"], Publisher(5))
        for _ in range(20):
            mine = Staging(on)
            mine.stage("a", b"1")
            mine.stage("a", b"2", partition=1)
            mine.commit()
            settle(on)
        assert len(producers_of(on, "a")) == 21
        checkpoint(on)
        assert producers_of(on, "a") == {5}
        assert producers_of(on, "a", 1) == set()


def test_transactions_take_no_producers_place_and_lose_none_of_their_own(data: Path) -> None:
    options = BrokerOptions(producers_max=3)
    with stage(data, options=options) as on:
        for i in range(1, 4):
            on.publish("a", [b"x"], Publisher(i))
        for _ in range(10):
            mine = Staging(on)
            mine.stage("a", b"1")
            mine.commit()
        settle(on)
        assert {1, 2, 3} < producers_of(on, "a")
        on.publish("a", [b"x"], Publisher(9))
        settle(on)
        assert len([p for p in producers_of(on, "a") if p > PRODUCER_ID_MAX]) == 10
    # None of them is known to be stored for good: a start must not store them again.
    with stage(data, options=options) as on:
        settle(on)
        assert on.values("a") == [b"x"] * 3 + [b"1"] * 10 + [b"x"]


def test_many_commits_are_checkpointed_before_their_second_is_over(data: Path) -> None:
    with stage(data) as on:
        on.runtime.time_us += 5_000_000
        on.core.tick()
        for _ in range(1000):
            mine = Staging(on)
            mine.stage("a", b"1")
            mine.commit()
        settle(on)
        on.core.tick()
        settle(on)
        assert producers_of(on, "a") == set()


def test_committed_ids_are_forgotten_by_age_and_past_so_many(data: Path) -> None:
    options = BrokerOptions(transaction_ids_seconds=3600, transaction_ids_max=3)
    with stage(data, options=options) as on:
        for i in range(5):
            Staging(on, f"id-{i}").commit()
            settle(on)
            checkpoint(on)

        def known() -> list[bool]:
            return [Staging(on, f"id-{i}").begun.committed for i in range(5)]

        assert known() == [False, False, True, True, True]
        time_us = on.runtime.time_us
    with stage(data, options=options) as on:
        on.runtime.time_us = time_us
        on.core.tick()
        assert known() == [False, False, True, True, True]
        on.runtime.time_us += 3_590_000_000
        on.core.tick()
        assert known()[4]
        on.runtime.time_us += 20_000_000
        on.core.tick()
        assert known() == [False] * 5


def test_a_full_disk_while_it_is_stored_only_delays_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        mine = Staging(on)
        mine.stage("a", b"1")
        mine.stage("b", b"2")
        outcomes = mine.commit()
        partition = on.core.catalog.get("b").partitions[0]
        disk = partition.log._disk
        assert disk is not None
        with monkeypatch.context() as broken:
            broken.setattr(type(disk), "write", _full_for(disk, type(disk).write))
            settle(on)
            assert outcomes == []
            on.core.tick()
            settle(on)
            assert outcomes == []
            assert on.core.status().problems
        on.core.tick()
        settle(on)
        assert outcomes.only.records == 2
        assert on.values("a") + on.values("b") == [b"1", b"2"]
        assert on.core.status().problems == ()


def _full_for(full: object, write: object) -> object:
    def guarded(disk: object, *given: object) -> object:
        return no_room() if disk is full else write(disk, *given)  # type: ignore[operator]

    return guarded


def test_a_ledger_that_can_not_be_written_leaves_the_transaction_open(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        Staging(on).commit()
        settle(on)
        mine = Staging(on)
        mine.stage("a", b"1")
        ledger = on.core.catalog.get("_fanlog.transactions").partitions[0].log._disk
        assert ledger is not None
        with monkeypatch.context() as broken:
            broken.setattr(type(ledger), "write", _full_for(ledger, type(ledger).write))
            with pytest.raises(DiskFullError):
                _ = mine.commit().only
        settle(on)
        assert on.values("a") == []
        outcomes = mine.commit()
        settle(on)
        assert outcomes.only.records == 1


@SIZES
def test_the_part_of_a_topic_that_was_deleted_is_skipped(
    data: Path, options: BrokerOptions
) -> None:
    with stage(data, options=options) as on:
        mine = Staging(on)
        mine.stage("a", b"1")
        mine.stage("b", b"2")
        mine.stage("a", b"3")
        on.core.delete_topic("b")
        outcomes = mine.commit()
        settle(on)
        assert outcomes.only.records == 3
        assert on.values("a") == [b"1", b"3"]


def test_an_unknown_ticket_with_an_unknown_id_is_not_there(data: Path) -> None:
    with stage(data) as on:
        outcomes = Outcomes()
        on.core.transactions.commit(CommitTransaction("0" * 32, "x"), outcomes.append)
        with pytest.raises(TransactionNotFoundError, match="stage again"):
            _ = outcomes.only


def test_a_client_can_not_use_a_transactions_producer_id(data: Path) -> None:
    with stage(data) as on, pytest.raises(FormatError):
        on.publish("a", [b"x"], Publisher(PRODUCER_ID_MAX + 1))


def test_a_transaction_larger_than_a_read_is_stored_in_order(data: Path) -> None:
    with stage(data, options=SPILLED, message_bytes_max=8 << 20, tail_bytes=4096) as on:
        mine = Staging(on)
        sizes = [900_000] * 6 + [6_000_000] + [10] * 3 + [900_000] * 6
        for i, size in enumerate(sizes):
            mine.stage("a", b"%d" % i + bytes(size))
        outcomes = mine.commit()
        settle(on)
        assert outcomes.only.records == len(sizes)
        assert [value.rstrip(b"\0") for value in on.values("a") if value] == [
            b"%d" % i for i in range(len(sizes))
        ]


@SIZES
def test_several_tickets_are_committed_as_one_and_the_rest_is_left_out(
    data: Path, options: BrokerOptions
) -> None:
    with stage(data, options=options, partitions=2) as on:
        coordinator = Staging(on, "job")
        attempts = [Staging(on, stager=stager) for stager in (1, 2, 3)]
        for number, attempt in enumerate(attempts):
            attempt.stage("a", b"%d" % number)
            attempt.stage("b", b"%d" % number, partition=1)
        chosen = (attempts[0].ticket, attempts[2].ticket)
        outcomes = coordinator.commit(tickets=chosen)
        settle(on)
        assert outcomes.only == TransactionCommitted("job", already=False, records=4)
        assert on.values("a") == on.values("b", 1) == [b"0", b"2"]
        attempts[1].abort()
        checkpoint(on)
        assert producers_of(on, "a") == set()
    with stage(data, options=options, partitions=2) as on:
        again = Staging(on, "job")
        assert again.commit().only.already
        assert on.values("a") == [b"0", b"2"]


def test_one_ticket_that_is_not_known_commits_none(data: Path) -> None:
    with stage(data) as on:
        coordinator, attempt = Staging(on, "job"), Staging(on)
        attempt.stage("a", b"1")
        (fault,) = coordinator.commit(tickets=(attempt.ticket, "00" * 16))
        assert isinstance(fault, TransactionNotFoundError)
        settle(on)
        assert on.values("a") == []
        outcomes = coordinator.commit(tickets=(attempt.ticket,))
        settle(on)
        assert outcomes.only.records == 1
        assert on.values("a") == [b"1"]


def test_a_commit_that_is_refused_is_not_kept_by_a_snapshot_of_the_ledger(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data) as on:
        before = Staging(on, "before")
        before.stage("a", b"1")
        before.commit()
        settle(on)
        mine = Staging(on, "mine")
        mine.stage("a", b"2")
        monkeypatch.setattr(ledger, "_SNAPSHOT_AFTER_RECORDS", 0)
        with monkeypatch.context() as full:
            full.setattr(on.core.internal, "write_internal", no_room)
            with pytest.raises(OSError, match="No space"):
                mine.commit()
        # The snapshot has begun, and goes on after it.
        settle(on)
        mine.abort()
        settle(on)
        marks = [b for b in on.fetch("_fanlog.transactions", 0) if not b.header.flags & KEYS]
        assert marks
    with stage(data) as on:
        settle(on)
        assert on.values("a") == [b"1"]


def test_many_small_ones_that_are_committed_together_go_through_files(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data, options=BrokerOptions(transaction_memory_bytes=500)) as on:
        parts = [Staging(on, stager=1 + i) for i in range(5)]
        for i, part in enumerate(parts):
            part.stage("a", b"%d" % i * 100)
            assert not on.core.transactions._open[part.ticket].staged.in_file
        tickets = tuple(part.ticket for part in parts[1:])
        with monkeypatch.context() as full:
            full.setattr(staging, "write_all", no_room)
            refused = parts[0].commit("all", tickets=tickets)
            settle(on)
            assert isinstance(refused[0], DiskFullError)
        outcomes = parts[0].commit("all", tickets=tickets)
        settle(on)
        assert outcomes.only.records == 5
        assert on.core.transactions._memory_bytes == 0
        intent = on.core.transactions._commits._commits["all"].intent
        assert all(part.file_bytes and not part.data for part in intent.parts)
        assert on.values("a") == [b"%d" % i * 100 for i in range(5)]


def test_tickets_follow_each_other_whatever_is_in_files(data: Path) -> None:
    options = BrokerOptions(transaction_memory_bytes=1000)
    expected = [b"%d" % i * size for i, size in enumerate((2000, 5, 5, 3000, 2000, 5))]
    with stage(data, options=options) as on:
        parts = [Staging(on, stager=1 + i) for i in range(len(expected))]
        for part, value in zip(parts, expected, strict=True):
            part.stage("a", value)
        outcomes = parts[0].commit("all", tickets=tuple(part.ticket for part in parts[1:]))
        settle(on)
        assert outcomes.only.records == len(expected)
        assert on.values("a") == expected
        checkpoint(on)
        assert producers_of(on, "a") == set()


def test_who_has_no_ticket_may_wait_for_a_known_id_and_commits_no_other(data: Path) -> None:
    with stage(data) as on:
        mine, late = Staging(on, "job", stager=1), Staging(on, "job", stager=2)
        mine.stage("a", b"1")
        late.stage("a", b"2")
        outcomes: list[Outcomes] = [Outcomes() for _ in range(3)]
        commit = on.core.transactions.commit
        commit(CommitTransaction("", "job", tickets=(late.ticket,)), outcomes[0].append)
        assert isinstance(outcomes[0][0], TransactionNotFoundError)
        commit(CommitTransaction(mine.ticket, "job"), outcomes[1].append)
        commit(CommitTransaction("", "job", tickets=(late.ticket,)), outcomes[2].append)
        assert outcomes[2] == []  # not before it is stored
        settle(on)
        assert not outcomes[1].only.already
        assert outcomes[2].only.already
        assert on.values("a") == [b"1"]
        assert len(on.core.transactions) == 0
