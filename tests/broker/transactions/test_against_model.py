"""Random transactions, publishes, steps and crashes, against what was promised: of each id at most
one transaction is there, whole, once, in its order; if its commit was answered, it is."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fanlog.broker.transactions import execution
from fanlog.config import BrokerOptions, LogOptions
from fanlog.errors import FanlogError
from fanlog.model import TopicSettings
from tests.broker.stage import Stage
from tests.broker.transactions.staging import Outcomes, Staging, checkpoint, settle
from tests.quick_folders import quick_folder

TOPICS = {"a": "os", "b": "fsync"}
PARTITIONS = 2
# Some transactions go to a file, which is then read in several pieces.
OPTIONS = BrokerOptions(transaction_memory_bytes=600)
PIECE_BYTES = 500

Place = tuple[str, int]


@dataclass
class Known:
    """A transaction as its client knows it."""

    id: str
    staging: Staging
    staged: dict[Place, list[bytes]] = field(default_factory=dict)
    commits: list[Outcomes] = field(default_factory=list)

    @property
    def won(self) -> bool:
        return any(
            not isinstance(outcome, FanlogError) and not outcome.already
            for outcomes in self.commits
            for outcome in outcomes
        )

    @property
    def answered(self) -> bool:
        return any(
            not isinstance(outcome, FanlogError)
            for outcomes in self.commits
            for outcome in outcomes
        )


class TransactionsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.held = ExitStack()
        self.root = self.held.enter_context(quick_folder())
        self.crashes = 0
        self.open: list[Known] = []
        self.everyone: list[Known] = []
        self.held.callback(setattr, execution, "_PIECE_BYTES", execution._PIECE_BYTES)
        execution._PIECE_BYTES = PIECE_BYTES
        self.on = self.start(self.root / "0")
        for topic, durability in TOPICS.items():
            wanted: dict[str, int | str] = {"durability": durability, "partitions": PARTITIONS}
            self.on.core.create_topic(topic, wanted)

    def start(self, folder: Path) -> Stage:
        return Stage(folder, OPTIONS, LogOptions(), TopicSettings())

    def teardown(self) -> None:
        with self.held:
            self.check()
            self.on.store.close()

    # What clients do

    @rule(id=st.sampled_from(["x", "y", "z"]))
    def begin(self, id: str) -> None:
        known = Known(id, Staging(self.on, id))
        self.open.append(known)
        self.everyone.append(known)

    @precondition(lambda self: self.open)
    @rule(
        chance=st.randoms(use_true_random=False),
        topic=st.sampled_from(sorted(TOPICS)),
        partition=st.integers(0, PARTITIONS - 1),
        size=st.integers(0, 300),
    )
    def stage(self, chance: Random, topic: str, partition: int, size: int) -> None:
        known = chance.choice(self.open)
        values = known.staged.setdefault((topic, partition), [])
        value = b"%s %d %s" % (known.staging.ticket.encode(), len(values), bytes(size))
        batch = known.staging.batch(topic, [value], partition)
        for _ in range(chance.choice([1, 1, 2])):
            known.staging.send(batch)
        values.append(value)

    @precondition(lambda self: self.open)
    @rule(chance=st.randoms(use_true_random=False), keep=st.booleans())
    def commit(self, chance: Random, *, keep: bool) -> None:
        known = chance.choice(self.open)
        known.commits.append(known.staging.commit(known.id))
        if keep:
            known.commits.append(known.staging.commit(known.id))
        self.open.remove(known)

    @precondition(lambda self: self.open)
    @rule(chance=st.randoms(use_true_random=False))
    def abort(self, chance: Random) -> None:
        known = chance.choice(self.open)
        known.staging.abort()
        self.open.remove(known)

    @rule(topic=st.sampled_from(sorted(TOPICS)), partition=st.integers(0, PARTITIONS - 1))
    def publish(self, topic: str, partition: int) -> None:
        """Others publish in between, so that a transaction's runs are many."""
        self.on.publish(topic, [b"plain"], partition=partition)

    # What time and chance do

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.on.runtime.due:
                self.on.runtime.due.popleft()()

    @rule()
    def sync(self) -> None:
        self.on.sync_group.sync()

    @rule()
    def tick(self) -> None:
        self.on.runtime.time_us += 600_000
        self.on.core.tick()

    @rule()
    def pass_a_second(self) -> None:
        checkpoint(self.on)

    @rule()
    def crash(self) -> None:
        """The process ends where it is; what it has written is there."""
        self.crashes += 1
        before, self.on = self.on, self.start_from_copy()
        before.store.close()
        # Whoever had no answer by then does not get one any more.
        self.open = []
        for known in self.everyone:
            known.commits = [Outcomes(outcomes) for outcomes in known.commits]

    def start_from_copy(self) -> Stage:
        copy = self.root / str(self.crashes)
        shutil.copytree(self.root / str(self.crashes - 1), copy)
        return self.start(copy)

    @rule()
    def check(self) -> None:
        settle(self.on)
        found: dict[str, dict[Place, list[bytes]]] = {}
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                for value in self.on.values(topic, partition):
                    assert value is not None
                    ticket = value.split(b" ")[0].decode()
                    found.setdefault(ticket, {}).setdefault((topic, partition), []).append(value)
        found.pop("plain", None)
        for known in self.everyone:
            mine = found.pop(known.staging.ticket, None)
            assert mine in (None, known.staged)
            assert not known.won or mine is not None or not known.staged
        assert not found
        for id in ("x", "y", "z"):
            same = [known for known in self.everyone if known.id == id]
            assert sum(known.won for known in same) <= 1
            committed = Staging(self.on, id)
            assert committed.begun.committed or not any(known.answered for known in same)
            committed.abort()


TransactionsAgainstModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestTransactionsAgainstModel = TransactionsAgainstModel.TestCase
