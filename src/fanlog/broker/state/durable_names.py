"""Durable names: how far each has committed, per topic and partition. A ledger keeps them: a
position's key is the name, the topic and the partition.

A position belongs to the topic with the number that it carries. It says nothing about another
topic that has got the same name since, even if a power cut undid the entry that took it back.

A commit takes effect when its entry is durable. Until then the position is pending, and readers see
the one before.

A position can be promised before it is committed: a transaction does so. When the transaction is
durable readers see the promised position, because nothing will take it back. It must not be on disk
before what it depends on is. Where another commit overtakes it, that is written down too, under the
mark of the transaction.

It is long because committed, pending and promised positions of a name overtake each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

import msgspec

from fanlog.broker.sorted_names import SortedNames
from fanlog.broker.state.ledger import Done, Entry, Ledger, LedgerHost
from fanlog.errors import FanlogError
from fanlog.format.messages import Position
from fanlog.log.store import MEMORY_NUMBERS_FROM


class _Value(msgspec.Struct, frozen=True, array_like=True):
    """A position in the ledger. `number` is the topic's; 0: of before numbers were kept.
    `membership` is that of the member that committed it; 0: nobody's."""

    offset: int
    epoch: int
    number: int = 0
    membership: int = 0


class MemberPosition(Position, frozen=True):
    """A position that a member of a group committed. `membership` is the epoch of its membership:
    it tells who has read there last."""

    membership: int = 0


def of_member(positions: Iterable[Position], membership: int) -> tuple[MemberPosition, ...]:
    """The positions as this member commits them."""
    return tuple(
        MemberPosition(p.topic, p.partition, p.offset, p.epoch, p.number, membership)
        for p in positions
    )


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(tuple[str, str, int]).decode
_decode_value = msgspec.msgpack.Decoder(_Value).decode


# Names that a snapshot lists at once.
_NAMES_A_PAGE = 200
# Positions dropped in one write.
_DROPPED_A_STEP = 200
# The effect of lost entries, for users.
_LOSS = (
    "groups and durable names get messages again from their last intact commit on, and where they "
    "have none from the earliest message on"
)
# Name, topic and partition.
_PositionKey = tuple[str, str, int]


class _Promise:
    """A position that a transaction commits. It is seen when the transaction is `durable`. One that
    is `overtaken` by another commit counts until that takes effect, and is not committed."""

    __slots__ = ("before", "durable", "mark", "overtaken", "position")

    def __init__(self, position: Position, mark: str, before: Position | None) -> None:
        self.position = position
        self.mark = mark
        # The value that readers see until it is durable, including promised positions.
        self.before = before
        self.durable = False
        self.overtaken = False


class DurableNames:
    """Positions in memory, and the ledger that brings them back. `number_of` is the number of the
    topic that has a name now, or 0 if there is none."""

    def __init__(self, host: LedgerHost, number_of: Callable[[str], int]) -> None:
        self._number_of = number_of
        self._names: dict[str, dict[tuple[str, int], Position]] = {}
        self._sorted = SortedNames()
        # By topic: the names that have positions there, and how many.
        self._in_topic: dict[str, dict[str, int]] = {}
        # Numbers of deleted topics whose positions are being dropped.
        self._dead: set[int] = set()
        self._promised: dict[_PositionKey, _Promise] = {}
        # Keys with entries that have not taken effect, and how many.
        self._pending: dict[_PositionKey, int] = {}
        self._ledger = Ledger(host, "cursors", self._everything, _LOSS)
        self.count = 0

    def load(self, left_aside: Collection[int] = ()) -> None:
        """Reads the ledger. Positions of topics that are gone are left out, but not those of
        topics that are only `left_aside`: they may be repaired."""
        self._ledger.load(self._take)
        for name, positions in list(self._names.items()):
            for place, position in list(positions.items()):
                gone = _outlives_starts(position.number) and not self._number_of(position.topic)
                if not self._counts(position) or (gone and position.number not in left_aside):
                    self._drop(name, place)

    def _counts(self, position: Position) -> bool:
        """Whether a position belongs to the current topic of this name. Memory topics get new
        numbers with every start; for them the epoch decides."""
        if position.number in self._dead:
            return False
        if not _outlives_starts(position.number):
            return True
        return self._number_of(position.topic) in (0, position.number)

    def numbered(self, position: Position) -> Position:
        """The position with its topic's number, if it does not say which."""
        if position.number:
            return position
        return msgspec.structs.replace(position, number=self._number_of(position.topic))

    def names(self) -> Iterable[str]:
        return self._names.keys()

    def names_since(self, name: str) -> Iterator[str]:
        """The names from this one on, in order. They must not change meanwhile."""
        return self._sorted.since(name)

    def names_in(self, topic: str) -> set[str]:
        """The names that have committed in a topic, or will have."""
        names = {
            name
            for name in self._in_topic.get(topic, ())
            if any(p.topic == topic and self._counts(p) for p in self._names[name].values())
        }
        coming = {name for name, where, _ in (*self._promised, *self._pending) if where == topic}
        return names | coming

    def may_have_lost(self, topic: int) -> bool:
        """Whether positions in a topic of this number may be lost: then a reader without one must
        not skip anything."""
        return self._ledger.may_have_lost(topic)

    def positions(self, name: str) -> tuple[Position, ...]:
        known = self._names.get(name, {})
        if self._promised:
            promised = {
                key[1:]: seen
                for key in self._promised
                if key[0] == name and (seen := self._seen_promise(key)) is not None
            }
            known = known | promised
        return tuple(position for position in known.values() if self._counts(position))

    def committed(self, name: str) -> list[Position]:
        """Committed positions, without promised ones."""
        return [
            position for position in self._names.get(name, {}).values() if self._counts(position)
        ]

    def has(self, name: str) -> bool:
        """Whether the name has committed anything that still counts."""
        return next(self.each_committed(name), None) is not None

    def each_committed(self, name: str) -> Iterator[Position]:
        """The same as an iterator: positions may change meanwhile."""
        for place in list(self._names.get(name, ())):
            position = self._names.get(name, {}).get(place)
            if position is not None and self._counts(position):
                yield position

    def names_beside(self, topic: str) -> list[str]:
        """Names with positions in a topic of this name, or in an earlier one of the name."""
        return list(self._in_topic.get(topic, ()))

    def position(self, name: str, topic: str, partition: int) -> Position | None:
        promised = self._seen_promise((name, topic, partition))
        if promised is not None:
            return promised
        found = self._names.get(name, {}).get((topic, partition))
        return found if found is not None and self._counts(found) else None

    def promise(self, name: str, positions: Iterable[Position], mark: str) -> None:
        """These will be committed, unless another commit comes first. `mark` is the durable name
        that the transaction has for itself. `promises_durable` follows."""
        for position in positions:
            key = name, position.topic, position.partition
            self._promised[key] = _Promise(position, mark, self._seen_promise(key))

    def promises_durable(self, mark: str) -> None:
        """The transaction is durable: readers see its positions."""
        for promise in self._promised.values():
            if promise.mark == mark:
                promise.durable = True

    def _seen_promise(self, key: _PositionKey) -> Position | None:
        promise = self._promised.get(key)
        if promise is None:
            return None
        return promise.position if promise.durable else promise.before

    def is_promised(self, name: str, position: Position) -> bool:
        promised = self._promised.get((name, position.topic, position.partition))
        if promised is None or promised.overtaken:
            return False
        return promised.position is position

    def is_overtaken(self, name: str, position: Position, mark: str) -> bool:
        """Whether another commit, or a deletion, came before a promise was kept, also if the
        broker has been restarted since."""
        place = (_overtaken_topic(name, position.topic), position.partition)
        return place in self._names.get(mark, {})

    def commit(
        self, commits: Iterable[tuple[str, tuple[Position, ...]]], done: Done | None = None
    ) -> None:
        """Commits positions of names, all or none. They are in effect when `done` runs."""
        wanted = [(name, position) for name, positions in commits for position in positions]
        promised = self._promises_at((n, p.topic, p.partition) for n, p in wanted)
        overtaken = self._overtaken(
            [(n, p.topic, p.partition) for n, p in wanted if not self.is_promised(n, p)]
            if promised
            else ()
        )
        everything = [(name, self.numbered(position)) for name, position in wanted + overtaken]

        def apply() -> None:
            self._drop_promises(promised)
            for name, position in everything:
                if not self._is_outdated(position):
                    self._set(name, position)

        broken = [
            promised[key]
            for n, p in (wanted if promised else ())
            if (key := (n, p.topic, p.partition)) in promised and not self.is_promised(n, p)
        ]
        keys = [(name, p.topic, p.partition) for name, p in everything]
        self._write([_entry(name, position) for name, position in everything], keys, apply, done)
        for promise in broken:
            promise.overtaken = True

    def _is_outdated(self, position: Position) -> bool:
        """Whether its topic was deleted while it was made durable."""
        return bool(position.number) and self._number_of(position.topic) != position.number

    def forget(self, *names: str, done: Done | None = None) -> None:
        """Deletes the names' positions, also those on their way to the disk."""
        forgotten = frozenset(names)
        places = dict.fromkeys(
            [(name, *place) for name in forgotten for place in self._names.get(name, {})]
            + [key for key in self._pending if key[0] in forgotten]
        )
        promised = self._promises_at([key for key in self._promised if key[0] in forgotten])
        overtaken = self._overtaken(promised)
        if not places and not overtaken:
            if done is not None:
                done(None)
            return

        def apply() -> None:
            for name, topic, partition in places:
                if (topic, partition) in self._names.get(name, {}):
                    self._drop(name, (topic, partition))
            self._drop_promises(promised)
            for mark, place in overtaken:
                self._set(mark, place)

        entries: list[Entry] = [(_key(*key), None) for key in places]
        entries += [_entry(mark, place) for mark, place in overtaken]
        keys = [*places, *((mark, place.topic, place.partition) for mark, place in overtaken)]
        self._write(entries, keys, apply, done)
        for promise in promised.values():
            promise.overtaken = True

    def _write(
        self,
        entries: list[Entry],
        keys: list[_PositionKey],
        apply: Callable[[], None],
        done: Done | None,
    ) -> None:
        """Writes entries; they take effect when they are durable."""

        def durable(fault: FanlogError | None) -> None:
            self._end_pending(keys)
            if fault is None:
                apply()
            if done is not None:
                done(fault)

        for key in keys:
            self._pending[key] = self._pending.get(key, 0) + 1
        try:
            self._ledger.write(entries, durable)
        except BaseException:
            self._end_pending(keys)
            raise

    def _end_pending(self, keys: Iterable[_PositionKey]) -> None:
        for key in keys:
            left = self._pending[key] - 1
            if left:
                self._pending[key] = left
            else:
                del self._pending[key]

    def is_pending(self, name: str, topic: str, partition: int) -> bool:
        """Whether a commit there is written, or one of a transaction, and has not taken effect."""
        key = name, topic, partition
        promised = self._promised.get(key)
        return key in self._pending or (promised is not None and not promised.durable)

    def _promises_at(self, keys: Iterable[_PositionKey]) -> dict[_PositionKey, _Promise]:
        if not self._promised:
            # Mostly there are none, and a group may have thousands of positions.
            return {}
        return {key: self._promised[key] for key in keys if key in self._promised}

    def _drop_promises(self, promised: dict[_PositionKey, _Promise]) -> None:
        """Drops promises, but not later ones at the same keys."""
        for key, promise in promised.items():
            if self._promised.get(key) is promise:
                del self._promised[key]

    def _overtaken(self, keys: Iterable[_PositionKey]) -> list[tuple[str, Position]]:
        """The entries to write if the current promises are dropped."""
        return [
            (promised.mark, Position(_overtaken_topic(key[0], key[1]), key[2], 0))
            for key in keys
            if (promised := self._promised.get(key)) is not None
        ]

    def forget_topic(self, topic: str, number: int) -> Iterator[None]:
        """Takes back a deleted topic's positions. From the first step on they do not count; they
        are dropped some at a step, while another topic of that name may get its own."""
        promised = self._promises_at([key for key in self._promised if key[1] == topic])
        overtaken = self._overtaken(promised)
        self._drop_promises(promised)
        for mark, place in overtaken:
            self._set(mark, place)
        if overtaken:
            self._ledger.write_or_owe([_entry(mark, place) for mark, place in overtaken])
        self._dead.add(number)
        for name in list(self._in_topic.get(topic, ())):
            places = [place for place in self._names.get(name, ()) if place[0] == topic]
            for first in range(0, len(places), _DROPPED_A_STEP):
                self._forget(name, places[first : first + _DROPPED_A_STEP], number)
                yield
        self._dead.discard(number)

    def _forget(self, name: str, places: list[tuple[str, int]], number: int) -> None:
        """Drops those of a name's positions that are of the topic with this number."""
        positions = self._names.get(name, {})
        found = [(place, positions[place]) for place in places if place in positions]
        gone = [place for place, position in found if position.number in (0, number)]
        for place in gone:
            self._drop(name, place)
        # A newer one on its way to the disk replaces this one.
        erased = [place for place in gone if (name, *place) not in self._pending]
        if erased:
            self._ledger.write_or_owe([(_key(name, *place), None) for place in erased])

    def _take(self, key: bytes, value: bytes | None) -> None:
        name, topic, partition = _decode_key(key)
        if value is None:
            if (topic, partition) in self._names.get(name, {}):
                self._drop(name, (topic, partition))
        else:
            found = _decode_value(value)
            position = Position(topic, partition, found.offset, found.epoch, found.number)
            if found.membership:
                (position,) = of_member((position,), found.membership)
            self._set(name, position)

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        name = ""
        while some := list(islice(self._sorted.since(name), _NAMES_A_PAGE)):
            for name in some:
                for place in list(self._names.get(name, ())):
                    position = self._names.get(name, {}).get(place)
                    if position is not None:
                        yield _entry(name, position)
            if len(some) < _NAMES_A_PAGE:
                return

    def _set(self, name: str, position: Position) -> None:
        positions = self._names.get(name)
        if positions is None:
            positions = self._names[name] = {}
            self._sorted.add(name)
        if (position.topic, position.partition) not in positions:
            self.count += 1
            names = self._in_topic.setdefault(position.topic, {})
            names[name] = names.get(name, 0) + 1
        positions[position.topic, position.partition] = position

    def _drop(self, name: str, place: tuple[str, int]) -> None:
        positions = self._names[name]
        del positions[place]
        if not positions:
            del self._names[name]
            self._sorted.remove(name)
        self._uncount(name, place[0])

    def _uncount(self, name: str, topic: str) -> None:
        self.count -= 1
        names = self._in_topic[topic]
        names[name] -= 1
        if not names[name]:
            del names[name]
            if not names:
                del self._in_topic[topic]


def _outlives_starts(number: int) -> bool:
    """Whether a topic's number is its own for good."""
    return 0 < number < MEMORY_NUMBERS_FROM


def _overtaken_topic(name: str, topic: str) -> str:
    """Under a mark there is no topic, so that it can be said whose position in which was one."""
    return f"{name}\n{topic}"


def _key(name: str, topic: str, partition: int) -> bytes:
    return _encode((name, topic, partition))


def _entry(name: str, position: Position) -> tuple[bytes, bytes]:
    key = _key(name, position.topic, position.partition)
    membership = position.membership if isinstance(position, MemberPosition) else 0
    return key, _encode(_Value(position.offset, position.epoch, position.number, membership))
