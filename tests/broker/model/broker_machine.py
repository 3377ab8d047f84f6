"""What every machine has: a broker, a model of its logs, publishing, time, and all kinds of ends.

A machine is a set of rules that hypothesis follows at random. Each rule does something to the
broker and to the model, and both must agree. A machine's own part begins with `prepare`, looks at
what has come in `turned`, and at what is left after an end in `started`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fanlog.broker.messages.topics import Partition
from fanlog.config import BrokerOptions
from fanlog.format.batch import encode_batch
from fanlog.model import TopicSettings
from tests.broker.model.log_model import PartitionModel, Refused, Sent, Stored
from tests.broker.model.world import LARGE_BYTES, SECOND_US, SEGMENT_BYTES, Place, World
from tests.broker.stage import Publisher

RETENTION_SECONDS = 100
# A topic that has more partitions than this does not grow.
PARTITIONS_MOST = 4
TOMBSTONE_SECONDS = 50
KEYS = (b"a", b"b", b"c", None)
GRACE_SECONDS = 2.0
REVOKE_SECONDS = 30.0

Topics = dict[str, dict[str, int | str]]

numbers = st.integers(0, 1 << 16)
parts = st.floats(0, 1)
keys = st.sampled_from(KEYS)


class Answer(NamedTuple):
    """An acknowledgement that is to come, or has."""

    place: Place
    publisher: Publisher
    expected: Stored
    next_offset: int


class BrokerMachine(RuleBasedStateMachine):
    """A broker with the topics `t.a` and `t.b`, publishing, time, and all kinds of ends."""

    # Topics of a machine's own, with their settings.
    more_topics: ClassVar[Topics] = {}

    @initialize(
        durabilities=st.tuples(*[st.sampled_from(["os", "fsync"])] * 2),
        partitions=st.integers(1, 3),
        choices=st.tuples(st.booleans(), st.booleans()),
        ledger_records=st.sampled_from([10, 20_000]),
    )
    def begin(
        self,
        durabilities: tuple[str, str],
        partitions: int,
        choices: tuple[bool, bool],
        ledger_records: int,
    ) -> None:
        self.choices = choices
        options = BrokerOptions(
            transaction_memory_bytes=200 if choices[0] else 1 << 20,
            group_grace_seconds=GRACE_SECONDS,
            revoke_seconds=REVOKE_SECONDS,
        )
        defaults = TopicSettings(segment_bytes=SEGMENT_BYTES, retention_seconds=RETENTION_SECONDS)
        self.world = World(options, defaults, ledger_records)
        first, second = durabilities
        self.topics: Topics = {
            "t.a": {"partitions": partitions, "durability": first},
            "t.b": {"partitions": 1, "durability": second},
            **self.more_topics,
        }
        self.logs: dict[Place, PartitionModel] = {}
        self.answers: list[Answer] = []
        self.values = 0
        self.create_topics()
        self.prepare()

    def prepare(self) -> None:
        """What a machine's model begins with."""

    def create_topics(self) -> None:
        """All of them; after a start those in memory are new."""
        for name, settings in self.topics.items():
            durability = str(settings["durability"])
            compacted = settings.get("cleanup") == "compact"
            self.world.on.core.create_topic(name, settings, exist_ok=True)
            for partition in range(int(settings["partitions"])):
                place = (name, partition)
                if durability == "memory" or place not in self.logs:
                    self.logs[place] = PartitionModel(durability, compacted=compacted)

    # What tests look at

    def partition(self, place: Place) -> Partition:
        return self.world.on.core.catalog.get(place[0]).partitions[place[1]]

    def place(self, number: int, prefix: str = "t.") -> Place:
        """One of the places, whatever the number."""
        places = sorted(place for place in self.logs if place[0].startswith(prefix))
        return places[number % len(places)]

    def read(self, place: Place) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Key and value of all that readers may see, by offset."""
        found: dict[int, tuple[bytes | None, bytes | None]] = {}
        partition = self.partition(place)
        offset = partition.log.start_offset
        while offset < partition.visible_end:
            for batch in self.world.on.fetch(place[0], offset, place[1]):
                keys = batch.keys if batch.columns.key_column else [None] * len(batch)
                for at, key, value in zip(batch.offsets, keys, batch.values, strict=True):
                    if at >= offset:
                        assert at not in found
                        found[at] = (key, value)
                offset = batch.next_offset
        return found

    # Publishing

    def new_values(self, count: int, *, large: bool = False) -> list[bytes | None]:
        """Values that nothing else has."""
        self.values += count
        size = LARGE_BYTES if large else 0
        return [(b"%d." % (self.values - i)).ljust(size, b"v") for i in range(count)]

    def hand_in(self, place: Place, sent: Sent, newest_epoch: int = 0) -> None:
        """Gives a batch to the broker and to the model. A refusal comes at once, and an
        acknowledgement never before what it is for can be seen."""
        log, publisher = self.logs[place], Publisher(sent.producer)
        data = encode_batch(
            sent.values,
            keys=sent.keys,
            topic=self.partition(place).topic.number,
            partition=place[1],
            producer_id=sent.producer,
            producer_epoch=sent.epoch,
            first_sequence=sent.sequence,
        )
        expected = log.take(sent, self.world.now_us, newest_epoch)
        assert self.world.on.core.take(data, 0, publisher) == len(data)
        codes = [error.code for _, _, error in publisher.refusals]
        if isinstance(expected, Refused):
            assert codes == [expected.code]
        else:
            assert codes == []
            next_offset = expected.base_offset + len(sent.values)
            self.answers.append(Answer(place, publisher, expected, next_offset))

    @rule(
        what=st.lists(st.tuples(numbers, st.integers(1, 4), keys), min_size=1, max_size=4),
        large=st.sampled_from([False, False, False, True]),
    )
    def publish(self, what: list[tuple[int, int, bytes | None]], large: bool) -> None:
        """Several batches in one turn, of nobody in particular."""
        for number, count, key in what:
            values = self.new_values(count, large=large)
            self.hand_in(self.place(number), Sent(values, None if key is None else [key] * count))
        self.world.on.run()
        self.turned(all_synced=False)

    def check_answers(self, *, all_synced: bool) -> None:
        waiting: list[Answer] = []
        for answer in self.answers:
            log = self.logs[answer.place]
            acks = [(a.base_offset, bool(a.duplicate)) for a in answer.publisher.acks]
            if acks:
                assert acks == [tuple(answer.expected)]
                assert answer.next_offset <= log.visible
            else:
                assert log.durability == "fsync"
                assert not all_synced
                waiting.append(answer)
        self.answers = waiting

    # Growing

    @rule(more=st.integers(1, 2))
    def grow(self, more: int) -> None:
        """Partitions come while everything runs."""
        settings = self.topics["t.a"]
        before = int(settings["partitions"])
        if before > PARTITIONS_MOST:
            return
        self.topics["t.a"] = {**settings, "partitions": before + more}
        self.world.on.grow("t.a", before + more)
        new = [("t.a", partition) for partition in range(before, before + more)]
        for place in new:
            self.logs[place] = PartitionModel(str(settings["durability"]))
        self.grew(new)
        self.world.on.run()
        self.turned(all_synced=False)

    def grew(self, new: list[Place]) -> None:
        """There are new partitions, of which nobody has been told yet."""

    # The disk, and time

    @rule(count=st.one_of(st.none(), st.integers(0, 3)))
    def sync(self, count: int | None) -> None:
        by_number = {self.partition(place).topic.number: place[0] for place in self.logs}
        for durable in self.world.sync(count):
            place = (by_number.get(durable.topic, ""), durable.partition)
            if place in self.logs:
                log = self.logs[place]
                log.visible = max(log.visible, durable.next_offset)
        self.world.on.run()
        self.turned(all_synced=count is None and not self.world.on.sync_group.waiting)

    def turned(self, *, all_synced: bool) -> None:
        """A turn has ended. What was promised is looked for; machines override it."""
        self.check_answers(all_synced=all_synced)

    def settle(self) -> None:
        """Until nothing is left to do."""
        self.world.on.run()
        self.sync(None)
        while self.world.on.sync_group.waiting or self.world.on.runtime.due:
            self.sync(None)

    @rule(seconds=st.sampled_from([0.1, 1.1, 3.0, 11.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.passes(seconds)

    def passes(self, seconds: float) -> None:
        self.world.later(seconds)

    # Ends

    @rule(how=st.sampled_from(["stop", "crash", "crash", "power", "power without sidecars"]))
    def end(self, how: str) -> None:
        """A clean stop, a process that dies, or a power failure; and a new start."""
        if how == "stop":
            self.settle()
            self.world.restart()
            self.started(power_lost=False)
        elif how == "crash" or not self.may_lose_power():
            self.crash()
        else:
            # Whoever has written something into a ledger has waited for the answer.
            self.world.on.sync_ledgers()
            self.lose_power(sidecars=how == "power")

    def crash(self) -> None:
        self.world.crash()
        self.started(power_lost=False)

    def may_lose_power(self) -> bool:
        return True

    def lose_power(self, *, sidecars: bool) -> None:
        self.world.power_loss(sidecars=sidecars)
        self.started(power_lost=True)

    def started(self, *, power_lost: bool) -> None:
        """After any end: what was visible is there, and what was written if only the process
        ended."""
        self.answers = []
        self.create_topics()
        for place, log in self.logs.items():
            end = self.partition(place).log.end_offset
            if power_lost and log.durability == "fsync":
                assert log.visible <= end <= log.end
            else:
                assert end == log.end
            log.cut(end)
        self.settle()
        self.check_everything()

    # What always holds

    @invariant()
    def the_numbers_fit(self) -> None:
        for place, log in self.logs.items():
            partition = self.partition(place)
            found = (partition.log.start_offset, partition.visible_end, partition.log.end_offset)
            assert found == (log.start, log.visible, log.end), place

    @rule()
    def check_everything(self) -> None:
        for place, log in self.logs.items():
            found = self.read(place)
            expected = {o: log.records[o][1::-1] for o in range(log.start, log.visible)}
            assert self.partition(place).log.damaged == []
            if log.compacted:
                since_us = self.world.now_us - TOMBSTONE_SECONDS * SECOND_US
                assert found.items() <= expected.items()
                assert log.must_be_there(since_us) <= found.keys()
            else:
                assert found == expected

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.last_check()
            finally:
                self.world.close()

    def last_check(self) -> None:
        self.settle()
        self.the_numbers_fit()
        self.check_everything()
