"""Transactions and crashes: whatever is cut off between the intent and the end, a start finds all
of a transaction or nothing of it, and never anything twice.

A process crash is a copy of the folder at some point. A power loss is one in which only what was
synced is left: of topics with durability fsync that is the journal.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest

from fanlog.broker.state.durable_names import MemberPosition
from fanlog.broker.transactions import execution
from fanlog.broker.transactions.intents import Intent, TransactionCommit
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError, LogFailedError, TransactionNotFoundError
from fanlog.format.messages import Position
from fanlog.log.group_commit import GroupCommit
from fanlog.model import PRODUCER_ID_MAX
from tests.broker.stage import Publisher, Stage, stage
from tests.broker.transactions.staging import Outcomes, Staging, checkpoint, producers_of, settle

SPILLED = BrokerOptions(transaction_memory_bytes=0)
SIZES = pytest.mark.parametrize("options", [BrokerOptions(), SPILLED], ids=["small", "spilled"])
DURABILITIES = pytest.mark.parametrize("durability", ["os", "fsync"])
TOPICS = ("a", "b")
PARTITIONS = 2


class Steps:
    """Runs a stage one call at a time, and copies the folder between any two."""

    def __init__(self, on: Stage, data: Path) -> None:
        self._on = on
        self._data = data
        self._numbers = count()

    def __iter__(self) -> Iterator[Path]:
        yield self.copy()
        while self._on.runtime.due or self._on.sync_group.waiting:
            if self._on.runtime.due:
                self._on.runtime.due.popleft()()
            else:
                self._on.sync_group.sync()
            yield self.copy()

    def copy(self) -> Path:
        to = self._data.with_name(f"crash-{next(self._numbers)}")
        shutil.copytree(self._data, to)
        return to


def contents(on: Stage) -> dict[tuple[str, int], list[bytes | None]]:
    return {
        (topic, partition): on.values(topic, partition)
        for topic in TOPICS
        for partition in range(PARTITIONS)
    }


def stage_some(on: Stage, id: str, rounds: Iterable[int] = range(3)) -> Staging:
    mine = Staging(on, id)
    for i in rounds:
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                mine.stage(topic, b"%s-%d" % (id.encode(), i), partition=partition)
    return mine


@SIZES
@DURABILITIES
@pytest.mark.parametrize("tickets", [1, 2])
def test_a_crash_at_any_step_leaves_all_or_nothing(
    data: Path,
    options: BrokerOptions,
    durability: str,
    tickets: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Small pieces, so that a crash also comes between those of a large one.
    monkeypatch.setattr(execution, "_PIECE_BYTES", 400)
    with stage(data, options=options, durability=durability, partitions=PARTITIONS) as on:
        for topic in TOPICS:
            on.publish(topic, [b"before"], Publisher(5))
        settle(on)
        before = contents(on)
        mine = stage_some(on, "tx", range(2) if tickets > 1 else range(3))
        others = [stage_some(on, "tx", range(2, 3)).ticket] if tickets > 1 else []
        everything = {
            place: [*values, *(b"tx-%d" % i for i in range(3))] for place, values in before.items()
        }
        outcomes = mine.commit(tickets=tuple(others))
        steps = Steps(on, data)
        crashes = [(copy, bool(outcomes)) for copy in steps]
        assert outcomes.only.records == 12
        on.runtime.time_us += 1_100_000
        on.core.tick()
        crashes += [(copy, True) for copy in steps]
        assert contents(on) == everything
    found: set[bool] = set()
    for copy, answered in crashes:
        with stage(copy, options=options, partitions=PARTITIONS) as on:
            settle(on)
            committed = Staging(on, "tx").begun.committed
            assert contents(on) == (everything if committed else before)
            assert committed or not answered
            found.add(committed)
            checkpoint(on)
            for topic in TOPICS:
                assert all(p <= PRODUCER_ID_MAX for p in producers_of(on, topic))
            assert list(copy.glob("transactions/*")) == []
        # And once more, when nothing is left to do.
        with stage(copy, options=options, partitions=PARTITIONS) as on:
            settle(on)
            assert contents(on) == (everything if committed else before)
            assert Staging(on, "tx").begun.committed == committed
    assert True in found
    if options is SPILLED:
        assert False in found


@SIZES
def test_a_transaction_that_was_not_committed_does_not_survive_a_restart(
    data: Path, options: BrokerOptions
) -> None:
    with stage(data, options=options) as on:
        mine = Staging(on, "x")
        mine.stage("a", b"1")
        ticket = mine.ticket
        files = len(list(data.glob("transactions/*")))
        assert files == (options is SPILLED)
    with stage(data, options=options) as on:
        assert list(data.glob("transactions/*")) == []
        with pytest.raises(TransactionNotFoundError, match="restarted"):
            Staging(on, ticket=ticket)
        again = Staging(on, "x")
        again.stage("a", b"1")
        outcomes = again.commit()
        settle(on)
        assert not outcomes.only.already
        assert on.values("a") == [b"1"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_id_is_known_after_a_restart(data: Path, checkpointed: bool) -> None:
    with stage(data) as on:
        mine = Staging(on, "x")
        mine.stage("a", b"1")
        mine.commit()
        settle(on)
        if checkpointed:
            checkpoint(on)
    for _ in range(3):
        with stage(data) as on:
            again = Staging(on, "x")
            assert again.begun.committed
            again.stage("a", b"2")
            outcomes = again.commit()
            settle(on)
            assert outcomes.only.already
            assert on.values("a") == [b"1"]


def test_a_commit_that_is_repeated_while_a_start_still_stores_it_waits(data: Path) -> None:
    with stage(data, durability="fsync") as on:
        mine = Staging(on, "x")
        mine.stage("a", b"1")
        mine.commit()
        on.run()
    with stage(data) as on:
        again = [Staging(on, "x").commit() for _ in range(2)]
        on.run()
        assert again == [[], []]
        settle(on)
        assert [outcomes.only.already for outcomes in again] == [True, True]
        assert on.values("a") == [b"1"]


# Durability fsync


@SIZES
def test_nothing_is_seen_before_the_intent_is_durable(data: Path, options: BrokerOptions) -> None:
    with stage(data, options=options, durability="fsync", partitions=PARTITIONS) as on:
        before = contents_of_new(on)
        outcomes = stage_some(on, "tx").commit()
        on.run()
        ((log, _, _),) = on.sync_group.waiting
        assert log is on.core.catalog.get("_fanlog.transactions").partitions[0].log
        assert contents(on) == before
        on.sync_group.sync()
        on.run()
        assert outcomes == []
        settle(on)
        assert outcomes.only.records == 12


def contents_of_new(on: Stage) -> dict[tuple[str, int], list[bytes | None]]:
    for topic in TOPICS:
        on.core.create_topic(topic, {})
    return contents(on)


def test_a_failed_sync_of_the_intent_is_told_and_nothing_is_shown(data: Path) -> None:
    with stage(data, durability="fsync", partitions=PARTITIONS) as on:
        before = contents_of_new(on)
        mine = stage_some(on, "tx")
        outcomes = mine.commit()
        on.run()
        on.fail_sync()
        on.run()
        with pytest.raises(LogFailedError, match="after the broker's restart"):
            _ = outcomes.only
        assert contents(on) == before
        with pytest.raises(LogFailedError):
            _ = mine.commit("tx").only
        assert any("tx" in problem for problem in on.core.status().problems)
    # The process could go on reading what it wrote, and so does the next one.
    with stage(data, partitions=PARTITIONS) as on:
        settle(on)
        assert Staging(on, "tx").begun.committed
        assert contents(on)["a", 0] == [b"tx-0", b"tx-1", b"tx-2"]


def with_journal(on: Stage) -> Callable[[], None]:
    """Real group commit instead of the one by hand; the result ends what is under way."""
    group = GroupCommit(on.store.get_journal(), on.runtime.soon)
    on.sync_group = group  # type: ignore[assignment]
    on.quick_ledgers = ()

    def finish() -> None:
        on.run()
        while group.pending_bytes or on.runtime.due:
            group.drain()
            on.run()
        group.drain()
        on.run()

    return finish


def power_loss(data: Path, to: Path) -> Path:
    """Only the journal, the names of topics, and synced files are left."""
    shutil.copytree(data, to)
    for path in to.glob("topics/*/*"):
        if path.is_dir():
            shutil.rmtree(path)
    return to


@SIZES
def test_a_power_loss_keeps_what_was_answered(
    data: Path, tmp_path: Path, options: BrokerOptions
) -> None:
    with stage(data, options=options, durability="fsync", partitions=PARTITIONS) as on:
        finish = with_journal(on)
        outcomes: list[Outcomes] = []
        lost: list[Path] = []
        for i in range(3):
            outcomes.append(stage_some(on, f"tx{i}").commit())
            finish()
            assert outcomes[-1].only.records == 12
            lost.append(power_loss(data, tmp_path / f"loss-{i}"))
        on.sync_group.close()  # type: ignore[attr-defined]
    for i, folder in enumerate(lost):
        with stage(folder, options=options, partitions=PARTITIONS) as on:
            settle(on)
            for values in contents(on).values():
                assert values == [b"tx%d-%d" % (t, r) for t in range(i + 1) for r in range(3)]
            assert [Staging(on, f"tx{t}").begun.committed for t in range(3)] == [
                t <= i for t in range(3)
            ]


def test_a_power_loss_after_the_intent_still_does_all_of_it(data: Path, tmp_path: Path) -> None:
    with stage(data, durability="fsync", partitions=PARTITIONS) as on:
        group = GroupCommit(on.store.get_journal(), on.runtime.soon)
        on.sync_group = group  # type: ignore[assignment]
        outcomes = stage_some(on, "tx").commit()
        early = power_loss(data, tmp_path / "early")
        on.runtime.due.popleft()()
        # The intent is synced; what follows from it has not begun.
        running = group._running
        assert running is not None
        with running.written:
            pass
        late = power_loss(data, tmp_path / "late")
        assert outcomes == []
        group.close()
    for folder, committed in ((early, False), (late, True)):
        with stage(folder, partitions=PARTITIONS) as on:
            settle(on)
            assert Staging(on, "tx").begun.committed == committed
            expected = [b"tx-0", b"tx-1", b"tx-2"] if committed else []
            for topic in TOPICS:
                if on.core.catalog.find(topic) is not None:
                    assert on.values(topic) == expected


def test_a_damaged_file_of_a_committed_transaction_is_reported_and_left_alone(
    data: Path, tmp_path: Path
) -> None:
    with stage(data, options=SPILLED) as on:
        mine = Staging(on, "x")
        mine.stage("a", b"1" * 1000)
        mine.commit()
        while not on.core.catalog.find("_fanlog.transactions"):
            on.runtime.due.popleft()()
        copy = tmp_path / "copy"
        shutil.copytree(data, copy)
    (file,) = copy.glob("transactions/*")
    whole = file.read_bytes()
    file.write_bytes(whole[:500] + b"?" + whole[501:])
    with stage(copy) as on:
        settle(on)
        assert on.values("a") == []
        assert any("put it back from a backup" in p for p in on.core.status().problems)
        with pytest.raises(FanlogError, match="put it back"):
            _ = Staging(on, "x").commit().only
    file.write_bytes(whole)
    with stage(copy) as on:
        settle(on)
        assert on.values("a") == [b"1" * 1000]
        assert Staging(on, "x").commit().only.already


def test_topics_in_memory_are_skipped_after_a_restart_whoever_has_their_number(
    data: Path, tmp_path: Path
) -> None:
    with stage(data, options=SPILLED) as on:
        on.core.create_topic("m", {"durability": "memory"})
        mine = Staging(on, "x")
        mine.stage("m", b"1")
        mine.stage("a", b"2")
        mine.commit()
        while not on.core.catalog.find("_fanlog.transactions"):
            on.runtime.due.popleft()()
        copy = tmp_path / "copy"
        shutil.copytree(data, copy)
    with stage(copy) as on:
        on.core.create_topic("other", {"durability": "memory"})
        settle(on)
        assert on.values("a") == [b"2"]
        assert on.values("other") == []


# Positions


def test_positions_of_an_unfinished_checkpoint_do_not_undo_what_came_after(
    data: Path, tmp_path: Path
) -> None:
    """Whatever a group commits, or is reset to, behind a transaction stays after a crash."""
    with stage(data) as on:
        on.publish("a", [b"x"] * 50)
        settle(on)
        _commit_positions(on, "tx", 10)
        settle(on)
        assert on.core.durable.positions("group/g") == (moved(10),)
        # A reset to where it was before the transaction.
        on.core.durable.commit_positions([("group/g", (Position("a", 0, 0, 1),))])
        crash = tmp_path / "crash"
        shutil.copytree(data, crash)
        checkpoint(on)
        assert list(on.core.durable.names()) == ["group/g"]
    with stage(crash) as on:
        settle(on)
        assert on.core.durable.positions("group/g") == (Position("a", 0, 0, 1, 1),)
        assert Staging(on, "tx").begun.committed
        checkpoint(on)
        assert list(on.core.durable.names()) == ["group/g"]


def moved(offset: int) -> MemberPosition:
    """A position as a member with the epoch 7 commits it."""
    return MemberPosition("a", 0, offset, 1, 1, 7)


def _commit_positions(on: Stage, id: str, offset: int) -> Outcomes:
    """As a member would whose ownership was checked."""
    mine = Staging(on, id)
    mine.stage("out", b"%d" % offset)
    transaction = on.core.transactions._open.pop(mine.ticket)
    intent = Intent(id, (transaction.part(),), (("group/g", (moved(offset),)),))
    outcomes = Outcomes()
    commit = TransactionCommit(mine.ticket, intent, {})
    on.core.transactions._commits.begin(commit, outcomes.append)
    return outcomes


def test_positions_wait_for_the_intent_and_nobody_takes_over_meanwhile(
    data: Path,
) -> None:
    with stage(data, durability="fsync") as on:
        on.publish("a", [b"x"] * 50)
        settle(on)
        outcomes = _commit_positions(on, "tx", 10)
        on.run()
        assert on.core.durable.position("group/g", "a", 0) is None
        assert on.core.durable.is_pending("group/g", "a", 0)
        assert on.core.catalog.find("_fanlog.cursors") is None
        on.sync_group.sync()
        assert on.core.durable.position("group/g", "a", 0) == moved(10)
        settle(on)
        assert outcomes.only.records == 1
        first, second = _commit_positions(on, "t1", 20), _commit_positions(on, "t2", 30)
        on.core.durable.commit_positions([("group/g", (Position("a", 0, 40, 1),))])
        settle(on)
        assert not first.only.already
        assert not second.only.already
        assert on.core.durable.position("group/g", "a", 0) == Position("a", 0, 40, 1, 1)


def test_a_power_loss_brings_positions_back_with_the_messages(data: Path, tmp_path: Path) -> None:
    with stage(data, durability="fsync") as on:
        finish = with_journal(on)
        on.publish("a", [b"x"] * 50)
        finish()
        outcomes = _commit_positions(on, "tx", 10)
        finish()
        assert outcomes.only.records == 1
        lost = power_loss(data, tmp_path / "lost")
        on.sync_group.close()  # type: ignore[attr-defined]
    with stage(lost) as on:
        settle(on)
        assert on.values("out") == [b"10"]
        assert on.core.durable.positions("group/g") == (moved(10),)


def test_a_position_of_a_deleted_topic_is_not_committed_for_the_next_of_its_name(
    data: Path, tmp_path: Path
) -> None:
    """A power cut takes all that the ledger of positions had to say about it."""
    with stage(data) as on:
        on.publish("a", [b"x"] * 50)
        settle(on)
        _commit_positions(on, "tx", 10)
        on.core.delete_topic("a")
        on.publish("a", [b"y"] * 50)
        on.run()
        crash = tmp_path / "crash"
        shutil.copytree(data, crash)
    for ledger in (crash / "topics").glob("*-_fanlog.cursors/0"):
        shutil.rmtree(ledger)
    with stage(crash) as on:
        settle(on)
        assert on.core.durable.positions("group/g") == ()


@pytest.mark.parametrize("overtaken_by", ["commit", "delete", "topic"])
def test_what_overtakes_a_promised_position_stands_after_a_crash(
    data: Path, tmp_path: Path, overtaken_by: str
) -> None:
    with stage(data, durability="fsync") as on:
        on.publish("a", [b"x"] * 50)
        settle(on)
        _commit_positions(on, "tx", 10)
        on.run()
        durable = on.core.durable
        if overtaken_by == "commit":
            durable.commit_positions([("group/g", (Position("a", 0, 40, 1),))])
        elif overtaken_by == "delete":
            durable.forget("group/g")
        else:
            on.core.delete_topic("a")
            on.core.open_topic("a", create=True)
        after = (Position("a", 0, 40, 1, 1),) if overtaken_by == "commit" else ()
        crash = tmp_path / "crash"
        shutil.copytree(data, crash)
        settle(on)
        assert durable.positions("group/g") == after
        checkpoint(on)
        assert set(durable.names()) <= {"group/g"}
    with stage(crash) as on:
        settle(on)
        assert on.values("out") == [b"10"]
        assert on.core.durable.positions("group/g") == after
        checkpoint(on)
        assert set(on.core.durable.names()) <= {"group/g"}
