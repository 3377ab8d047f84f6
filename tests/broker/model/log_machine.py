"""The log and its producers against their model."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fanlog.errors import FencedError, OffsetOutOfRangeError
from fanlog.format.batch import encode_batch
from fanlog.format.messages import RegisterProducer
from fanlog.model import Start
from tests.broker.deletions import delete_records
from tests.broker.model.broker_machine import (
    KEYS,
    RETENTION_SECONDS,
    TOMBSTONE_SECONDS,
    BrokerMachine,
    Topics,
    numbers,
    parts,
)
from tests.broker.model.log_model import Sent
from tests.broker.model.world import SECOND_US, Place
from tests.broker.stage import Publisher


class LogRules(BrokerMachine):
    """Producers with and without names, reading from anywhere, deleting and compacting."""

    more_topics: ClassVar[Topics] = {
        "k.c": {
            "partitions": 1,
            "durability": "os",
            "cleanup": "compact",
            "tombstone_seconds": TOMBSTONE_SECONDS,
            "compact_after_bytes": 1000,
        },
        "k.f": {
            "partitions": 1,
            "durability": "fsync",
            "cleanup": "compact",
            "tombstone_seconds": TOMBSTONE_SECONDS,
            "compact_after_bytes": 1000,
        },
        "m": {"partitions": 2, "durability": "memory"},
    }

    def prepare(self) -> None:
        super().prepare()
        # The newest epoch of each name, and everyone who has ever registered it.
        self.names: dict[str, tuple[int, int]] = {}
        self.producers: list[tuple[str, int, int]] = [("", 1, 0), ("", 2, 0), ("", 3, 0)]
        self.sent: dict[tuple[int, int, Place], list[Sent]] = {}

    # Producers

    @rule(name=st.sampled_from(["x", "y"]))
    def register(self, name: str) -> None:
        given = self.world.on.core.producers.register(RegisterProducer(name))
        self.world.on.run()
        if name in self.names:
            id, epoch = self.names[name]
            assert (given.id, given.epoch) == (id, epoch + 1)
        self.names[name] = (given.id, given.epoch)
        self.producers.append((name, given.id, given.epoch))

    @precondition(lambda self: self.names)
    @rule(number=numbers)
    def register_again(self, number: int) -> None:
        """A producer that has lost its connection comes back."""
        named = [producer for producer in self.producers if producer[0]]
        name, id, epoch = named[number % len(named)]
        try:
            given = self.world.on.core.producers.register(RegisterProducer(name, id, epoch))
            assert (given.id, given.epoch) == (id, epoch) == self.names[name]
        except FencedError:
            assert self.names[name] != (id, epoch)

    @rule(
        who=numbers,
        where=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 5, 6]),
        what=st.sampled_from(["next", "next", "repeat", "repeat", "gap", "again"]),
        count=st.integers(1, 4),
        which=numbers,
        keyed=st.booleans(),
        large=st.sampled_from([False, False, True]),
    )
    def publish_numbered(
        self, *, who: int, where: int, what: str, count: int, which: int, keyed: bool, large: bool
    ) -> None:
        """The next batch, one that was sent before, one too early, or some records of before in
        another batch."""
        # The newest of all, often enough, and those whom it has shut out.
        name, id, epoch = self.producers[-1 - who % 3 % len(self.producers)]
        place = self.place(where, "")
        log, sent = self.logs[place], self.sent.setdefault((id, epoch, place), [])
        sequence = len(log.numbered(id, epoch))
        keyed = keyed or log.compacted
        if what == "repeat" and sent:
            batch = sent[which % len(sent)]
        else:
            sequence += {"gap": 1 + which % 3, "again": -min(sequence, which % 3)}.get(what, 0)
            values = self.new_values(count, large=large)
            keys = [KEYS[(which + i) % len(KEYS)] for i in range(count)] if keyed else None
            batch = Sent(values, keys, id, epoch, sequence)
            sent.append(batch)
        self.hand_in(place, batch, self.names[name][1] if name else 0)
        self.world.on.run()
        self.turned(all_synced=False)

    @rule(number=numbers, count=st.integers(1, 4))
    def publish_and_crash_before_the_turn_ends(self, number: int, count: int) -> None:
        place = self.place(number)
        values = self.new_values(count)
        topic, publisher = self.partition(place).topic.number, Publisher()
        self.world.on.core.take(encode_batch(values, topic=topic, partition=place[1]), 0, publisher)
        self.crash()
        assert publisher.acks == []

    # Reading

    @rule(where=numbers, offset=parts)
    def fetch(self, where: int, offset: float) -> None:
        place = self.place(where, "")
        log = self.logs[place]
        wanted = int(offset * (log.end + 2))
        try:
            batches = self.world.on.fetch(place[0], wanted, place[1])
        except OffsetOutOfRangeError:
            assert wanted < log.start
            return
        assert bool(batches) == (wanted < log.visible)
        for batch in batches:
            for at, value in zip(batch.offsets, batch.values, strict=True):
                assert value == log.records[at].value
        if batches and not log.compacted:
            assert batches[0].base_offset <= wanted < batches[0].next_offset

    @rule(where=numbers, before_seconds=st.sampled_from([0.0, 0.5, 2.0, 20.0, 60.0, 200.0]))
    def look_for_a_time(self, where: int, before_seconds: float) -> None:
        place = self.place(where, "")
        log = self.logs[place]
        if log.compacted:
            return
        time_us = self.world.now_us - int(before_seconds * SECOND_US)
        start = Start("time", time_us)
        found = self.world.ask(self.world.on.core.reading.find_offset(self.partition(place), start))
        assert found == log.offset_at(time_us)

    # What goes

    @rule()
    def retain(self) -> None:
        """Whole segments go, and only what is old enough."""
        self.world.on.core.housekeeping()
        self.world.on.run()
        oldest_us = self.world.now_us - RETENTION_SECONDS * SECOND_US
        for place, log in self.logs.items():
            start = self.partition(place).log.start_offset
            assert log.start <= start <= log.end
            assert all(record.time_us < oldest_us for record in log.records[log.start : start])
            log.start = start

    @rule(where=numbers, offset=parts)
    def delete_records(self, where: int, offset: float) -> None:
        place = self.place(where, "")
        log = self.logs[place]
        before = int(offset * (log.visible + 1))
        try:
            delete_records(self.world.on.core, place[0], {place[1]: before})
        except OffsetOutOfRangeError:
            assert before > log.visible
            return
        assert before <= log.visible
        log.start = max(log.start, before)

    @rule(name=st.sampled_from(["k.c", "k.f"]))
    def compact(self, name: str) -> None:
        """What is visible of each key is there once."""
        visible = self.logs[name, 0].visible
        self.world.ask(self.world.on.core.compact(name))
        found = [key for at, (key, _) in self.read((name, 0)).items() if at < visible]
        keyed = [key for key in found if key is not None]
        assert len(keyed) == len(set(keyed))
        self.check_everything()

    @rule(name=st.sampled_from(["k.c", "k.f"]), steps=st.integers(1, 6))
    def compact_and_crash(self, name: str, steps: int) -> None:
        self.world.ask(self.world.on.core.compact(name), steps)
        self.crash()
