"""Named producers: the client that may publish under a name.

A name has an id and an epoch, kept in a ledger. A new registration raises the epoch, and fences the
earlier client at once. No check of every batch is needed: all partitions forget the id, and look up
a producer that they do not know here.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator

import msgspec

from fanlog.broker.clocks import SECOND_US, Clocks, moment_of_us, wall_time_us
from fanlog.broker.messages.topics import Partition
from fanlog.broker.state.ledger import Entry, Ledger, LedgerHost
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError, FencedError, InvalidArgumentError, LimitError, allow_more
from fanlog.format.messages import ProducerRegistered, RegisterProducer
from fanlog.model import PRODUCER_EPOCH_MAX, PRODUCER_ID_MAX, PRODUCER_NAME_BYTES_MAX

# Names that are checked, and forgotten, together.
_EXPIRED_A_STEP = 200
# The effect of lost entries, for users.
_LOSS = (
    "one of them may have shut out a named producer, so the broker refuses all earlier named "
    "producers until they are started again"
)


class _Registration(msgspec.Struct, frozen=True, array_like=True):
    """`used_up` marks an id that has reached its last epoch, and may never publish again."""

    id: int
    epoch: int
    seen_us: int
    used_up: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Registration).decode


class NamedProducers:
    def __init__(self, host: LedgerHost, options: BrokerOptions, clocks: Clocks) -> None:
        self._options = options
        self._clocks = clocks
        self._ledger = Ledger(host, "producers", self._everything, _LOSS)
        self._names: dict[str, _Registration] = {}
        # Registrations that are written, and have not taken effect.
        self._pending: dict[str, _Registration] = {}
        # The last time that each was seen, by the monotonic clock; the ledger has the wall clock.
        self._seen_us: dict[str, int] = {}
        self._connections: dict[str, int] = {}
        # By id: the lowest epoch that may publish, and the partitions with its batches.
        self._epochs: dict[int, int] = {}
        self._name_of: dict[int, str] = {}
        self._partitions: dict[int, dict[Partition, None]] = {}
        self._everywhere: Collection[Partition] = ()

    def load(self, partitions: Collection[Partition]) -> None:
        """Restores the names. `partitions` returns all current ones; they must not continue with
        fenced producers."""
        self._ledger.load(self._take)
        self._catch_up(partitions)
        for name, known in self._names.items():
            self._seen_us[name] = moment_of_us(self._clocks, known.seen_us, self._idle_us)
        self._everywhere = partitions
        for partition in partitions:
            for producer_id in self._epochs.keys() & (partition.producers or {}).keys():
                self._partitions.setdefault(producer_id, {})[partition] = None
        for producer_id in list(self._partitions):
            self._shut_out(producer_id)

    def _catch_up(self, partitions: Collection[Partition]) -> None:
        """Epochs never go back: an epoch that a log has seen counts. After lost entries nobody
        knows who was fenced, so all have to register again."""
        seen: dict[int, int] = {}
        for partition in partitions:
            for id in self._epochs.keys() & (partition.producers or {}).keys():
                seen[id] = max(seen.get(id, 0), (partition.producers or {})[id].epoch)
        lost = self._ledger.lost
        for name, known in list(self._names.items()):
            epoch = max(known.epoch, seen.get(known.id, 0)) + (lost + 1 if lost else 0)
            if epoch <= PRODUCER_EPOCH_MAX:
                self._set(name, msgspec.structs.replace(known, epoch=epoch))
            else:
                self._unset(name)
                self._set(name, _Registration(self._new_id(), 1, known.seen_us, known.id))

    @property
    def _idle_us(self) -> int:
        return self._options.producer_idle_seconds * SECOND_US

    def name_of(self, producer_id: int) -> str:
        """The name that an id was registered under; empty if it has none."""
        return self._name_of.get(producer_id, "")

    # Who may publish

    def check(self, producer_id: int, epoch: int) -> None:
        """Refuses a producer whose name another client has registered since."""
        newest = self._epochs.get(producer_id)
        if newest is not None and epoch < newest:
            raise FencedError(
                "Another client has registered this producer's name since. Nothing was stored. "
                "Give each producer a name of its own, or connect again to take this one back."
            )

    def seen_in(self, producer_id: int, partition: Partition) -> None:
        """A producer has begun to publish to a partition."""
        if producer_id in self._epochs:
            self._partitions.setdefault(producer_id, {})[partition] = None

    # Names

    def register(self, wanted: RegisterProducer) -> ProducerRegistered:
        """The name's id with its next epoch; or with the same one, for a client that names its
        epoch."""
        name = wanted.name
        if not 1 <= len(name.encode(errors="replace")) <= PRODUCER_NAME_BYTES_MAX:
            raise InvalidArgumentError(
                f"A producer's name has 1 to {PRODUCER_NAME_BYTES_MAX} bytes: choose another."
            )
        known = self._pending.get(name) or self._names.get(name)
        if known is None and len(self._names) + len(self._pending) >= (
            self._options.producer_names_max
        ):
            raise LimitError(
                f"This broker holds {len(self._names)} names of producers, which is the limit. Use "
                "the same names again, not a new one for each start. "
                + allow_more("broker.producer_names_max")
            )
        chosen = self._renewed(known, wanted) if wanted.id else self._next(known)
        if known is None or (known.id, known.epoch) != (chosen.id, chosen.epoch):
            self._write(name, chosen, known, come_back=bool(wanted.id))
        else:
            self._take_effect(name, chosen, known, come_back=True)
        return ProducerRegistered(chosen.id, chosen.epoch)

    def _write(
        self, name: str, chosen: _Registration, known: _Registration | None, *, come_back: bool
    ) -> None:
        """Registers when the entry is durable: until then the earlier client may publish."""

        def durable(fault: FanlogError | None) -> None:
            if self._pending.get(name) is chosen:
                del self._pending[name]
            if fault is None:
                self._take_effect(name, chosen, known, come_back=come_back)

        before = self._pending.get(name)
        self._pending[name] = chosen
        try:
            self._ledger.write([_entry(name, chosen)], durable)
        except BaseException:
            if before is None:
                del self._pending[name]
            else:
                self._pending[name] = before
            raise

    def _take_effect(
        self, name: str, chosen: _Registration, known: _Registration | None, *, come_back: bool
    ) -> None:
        self._set(name, chosen)
        self._seen_us[name] = self._clocks.monotonic_us()
        if known is not None:
            self._shut_out(known.id)
        elif come_back:
            self._look_for(chosen.id)

    def _next(self, known: _Registration | None) -> _Registration:
        now_us = self._clocks.now_us()
        if known is None:
            return _Registration(self._new_id(), 1, now_us)
        if known.epoch >= PRODUCER_EPOCH_MAX:
            return _Registration(self._new_id(), 1, now_us, used_up=known.id)
        return msgspec.structs.replace(known, epoch=known.epoch + 1, seen_us=now_us)

    def _new_id(self) -> int:
        while True:
            found = 1 + secrets.randbelow(PRODUCER_ID_MAX)
            if found not in self._epochs:
                return found

    def _renewed(self, known: _Registration | None, wanted: RegisterProducer) -> _Registration:
        """A producer that comes back. If its name is forgotten, it keeps its id and epoch."""
        if (
            not 0 < wanted.id <= PRODUCER_ID_MAX
            or not 0 < wanted.epoch <= PRODUCER_EPOCH_MAX
            or (known is None and wanted.id in self._epochs)
        ):
            raise InvalidArgumentError(
                f"No producer was given the id {wanted.id} with epoch {wanted.epoch} under the "
                f"name {wanted.name!r}: register without them."
            )
        if known is None:
            if self._ledger.may_have_lost():
                raise FencedError(
                    f"The broker has lost the entry of the producer's name {wanted.name!r}, which "
                    "another client may have registered since: start the producer again."
                )
            return _Registration(wanted.id, wanted.epoch, self._clocks.now_us())
        if known.id != wanted.id or known.epoch > wanted.epoch:
            raise FencedError(
                f"Another client has registered the producer's name {wanted.name!r} since. Give "
                "each producer a name of its own, or connect again to take this one back."
            )
        return msgspec.structs.replace(known, epoch=wanted.epoch, seen_us=self._clocks.now_us())

    def _shut_out(self, producer_id: int) -> None:
        """Makes all partitions forget the epochs of a producer that may not publish any more."""
        seen = self._partitions.get(producer_id, {})
        for partition in list(seen):
            producers = partition.producers or {}
            producer = producers.get(producer_id)
            if producer is None or producer.epoch < self._epochs[producer_id]:
                producers.pop(producer_id, None)
                del seen[partition]

    def _look_for(self, producer_id: int) -> None:
        """The partitions of a producer whose name was forgotten meanwhile."""
        for partition in self._everywhere:
            if producer_id in (partition.producers or {}):
                self.seen_in(producer_id, partition)
        self._shut_out(producer_id)

    def connected(self, name: str) -> None:
        """A connection has registered the name; as long as it lasts, the name does not expire."""
        self._connections[name] = self._connections.get(name, 0) + 1

    def left(self, name: str) -> None:
        """A connection of this producer is gone."""
        connections = self._connections.pop(name, 0) - 1
        if connections > 0:
            self._connections[name] = connections
            return
        known = self._names.get(name)
        # A pending registration has the time when the name was seen.
        if known is not None and name not in self._pending:
            seen = msgspec.structs.replace(known, seen_us=self._clocks.now_us())
            self._set(name, seen)
            self._seen_us[name] = self._clocks.monotonic_us()
            self._ledger.write_or_owe([_entry(name, seen)])

    def expire(self) -> Iterator[None]:
        """Forgets names that were neither registered nor connected for producer_idle_seconds; some
        of them at a step."""
        for partitions in list(self._partitions.values()):
            for partition in [p for p in partitions if p.topic.deleted]:
                del partitions[partition]
            yield
        before_us = self._clocks.monotonic_us() - self._idle_us
        names = list(self._seen_us)
        for first in range(0, len(names), _EXPIRED_A_STEP):
            some = names[first : first + _EXPIRED_A_STEP]
            gone = [name for name in some if self._is_idle(name, before_us)]
            entries: list[Entry] = [(name.encode(), None) for name in gone]
            if entries:
                self._ledger.write_or_owe(entries)
            for name in gone:
                self._unset(name)
            yield

    def _is_idle(self, name: str, before_us: int) -> bool:
        seen_us = self._seen_us.get(name)
        if seen_us is None or name in self._connections or name in self._pending:
            return False
        return seen_us < before_us

    # What the ledger keeps

    def _take(self, key: bytes, value: bytes | None) -> None:
        name = key.decode()
        if value is None:
            self._unset(name)
        else:
            self._set(name, _decode(value))

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        shift_us = wall_time_us(self._clocks, 0)
        for name in list(self._names):
            known = self._names.get(name)
            if known is not None:
                seen_us = self._seen_us[name] + shift_us
                yield name.encode(), _encode(msgspec.structs.replace(known, seen_us=seen_us))

    def _set(self, name: str, registration: _Registration) -> None:
        self._names[name] = registration
        self._name_of[registration.id] = name
        self._epochs[registration.id] = registration.epoch
        if registration.used_up:
            self._epochs[registration.used_up] = PRODUCER_EPOCH_MAX + 1

    def _unset(self, name: str) -> None:
        known = self._names.pop(name, None)
        self._seen_us.pop(name, None)
        if known is not None:
            for producer_id in (known.id, known.used_up):
                self._epochs.pop(producer_id, None)
                self._name_of.pop(producer_id, None)
                self._partitions.pop(producer_id, None)


def _entry(name: str, registration: _Registration) -> Entry:
    return name.encode(), _encode(registration)
