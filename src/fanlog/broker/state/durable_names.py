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
from itertools import chain, islice

import msgspec

from fanlog.broker.slices import Slices
from fanlog.broker.sorted_names import SortedNames
from fanlog.broker.state.large_changes import LargeChange, LargeChanges, TopicAndPartition
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
# Positions of a large change that are prepared, or take effect, in one step.
_CHANGED_A_STEP = 128
# The effect of lost entries, for users.
_LOSS = (
    "groups and durable names get messages again: those after their last intact offset commit, or "
    "all if they have none"
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

    def __init__(self, host: LedgerHost, number_of: Callable[[str], int], slices: Slices) -> None:
        self._number_of = number_of
        self._slices = slices
        self._large = LargeChanges()
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
            for tp, position in list(positions.items()):
                gone = _outlives_starts(position.number) and not self._number_of(position.topic)
                if not self._counts(position) or (gone and position.number not in left_aside):
                    self._remove(name, tp)

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
        return names | coming | self._large.names_in(topic)

    def is_in(self, name: str, topic: str) -> bool:
        """Whether a name has positions in a topic of this name, or will have."""
        return name in self._in_topic.get(topic, ()) or any(
            key[0] == name and key[1] == topic for key in chain(self._promised, self._pending)
        )

    def is_forgotten(self, name: str) -> bool:
        """Whether a name's positions are being deleted."""
        return self._large.forgets(name)

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
        for tp in list(self._names.get(name, ())):
            position = self._names.get(name, {}).get(tp)
            if position is not None and self._counts(position):
                yield position

    def each_position(self, name: str) -> Iterator[Position]:
        """The same as `positions`, as an iterator: they may change meanwhile."""
        known = self._names.get(name, {})
        promised = [key[1:] for key in self._promised if key[0] == name and key[1:] not in known]
        for at in [*known, *promised]:
            position = self.position(name, *at)
            if position is not None:
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
        self._large.finish_preparing((name,))
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
        tp = (_overtaken_topic(name, position.topic), position.partition)
        return tp in self._names.get(mark, {})

    def commit_positions(
        self, commits: Iterable[tuple[str, tuple[Position, ...]]], done: Done | None = None
    ) -> None:
        """Commits positions of names, all or none. They are in effect when `done` runs."""
        wanted = [(name, position) for name, positions in commits for position in positions]
        if self._large.preparing:
            self._large.finish_preparing({name for name, _ in wanted})
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

    def commit_in_slices(
        self, name: str, positions: dict[TopicAndPartition, Position], done: Done
    ) -> None:
        """Commits very many positions of a name, all or none, with the numbers of their topics.
        They are in effect when `done` runs. Until then they are pending, also before they are
        written."""
        self._change(LargeChange(name, dict(positions), forgets=False), done)

    def forget_in_slices(self, name: str, done: Done) -> None:
        """Deletes a name's positions, however many there are: those committed until now."""
        self._large.finish_preparing((name,))
        todo: dict[TopicAndPartition, Position | None] = dict.fromkeys(self._names.get(name, ()))
        todo.update(((key[1], key[2]), None) for key in self._pending if key[0] == name)
        for before in self._large.of(name):
            todo.update(dict.fromkeys(before.todo))
        if not todo and all(key[0] != name for key in self._promised):
            done(None)
            return
        self._change(LargeChange(name, todo, forgets=True), done)

    def _change(self, change: LargeChange, done: Done) -> None:
        self._large.finish_preparing((change.name,))
        self._large.begin(change)
        change.steps = self._prepare(change, done)
        self._slices.in_slices(change.steps)

    def _prepare(self, change: LargeChange, done: Done) -> Iterator[None]:
        """Encodes a change, and then writes it. Others may write the last of it: see
        `finish_preparing`."""
        name = change.name
        items = iter(change.todo.items())
        while some := list(islice(items, _CHANGED_A_STEP)):
            entries: list[Entry] = []
            for at, position in some:
                entry = (_key(name, *at), None) if position is None else _entry(name, position)
                entries.append(entry)
            _add(change, entries)
            yield
        self._large.preparing.remove(change)
        self._write_large(change, done)

    def _write_large(self, change: LargeChange, done: Done) -> None:
        name = change.name
        promised = self._promises_at(
            [
                key
                for key in self._promised
                if key[0] == name and (change.forgets or key[1:] in change.todo)
            ]
        )
        overtaken = self._overtaken(promised)
        _add(change, [_entry(mark, position) for mark, position in overtaken])
        marks = [(mark, position.topic, position.partition) for mark, position in overtaken]

        def end(fault: FanlogError | None = None) -> None:
            self._large.end(change)
            self._ledger.has_taken_in(change.keys)
            done(fault)

        def durable(fault: FanlogError | None) -> None:
            self._end_pending(marks)
            if fault is not None:
                end(fault)
                return
            self._drop_promises(promised)
            for mark, position in overtaken:
                self._set(mark, position)
            self._large.taking_in.append(change)
            self._slices.in_slices(self._take_in(change), end)

        self._begin_pending(marks)
        try:
            self._ledger.write_large(change.batch, change.keys, durable)
        except FanlogError as fault:
            self._end_pending(marks)
            end(fault)
            return
        for promise in promised.values():
            promise.overtaken = True

    def _take_in(self, change: LargeChange) -> Iterator[None]:
        """A change takes effect, except for what newer entries have set since."""
        name = change.name
        for number, (at, position) in enumerate(list(change.todo.items())):
            if not number % _CHANGED_A_STEP:
                yield
            if at not in change.todo:
                continue
            del change.todo[at]
            self._large.overtake(name, at, before=change)
            if position is None:
                if at in self._names.get(name, {}):
                    self._remove(name, at)
            elif not self._is_outdated(position):
                self._put(name, position)

    def forget(self, *names: str, done: Done | None = None) -> None:
        """Deletes the names' positions, also those on their way to the disk."""
        self._large.finish_preparing(names)
        forgotten = frozenset(names)
        tps = dict.fromkeys(
            [(name, *tp) for name in forgotten for tp in self._names.get(name, {})]
            + [key for key in self._pending if key[0] in forgotten]
        )
        promised = self._promises_at([key for key in self._promised if key[0] in forgotten])
        overtaken = self._overtaken(promised)
        if not tps and not overtaken:
            if done is not None:
                done(None)
            return

        def apply() -> None:
            for name, topic, partition in tps:
                self._large.overtake(name, (topic, partition))
                if (topic, partition) in self._names.get(name, {}):
                    self._remove(name, (topic, partition))
            self._drop_promises(promised)
            for mark, tp in overtaken:
                self._set(mark, tp)

        entries: list[Entry] = [(_key(*key), None) for key in tps]
        entries += [_entry(mark, tp) for mark, tp in overtaken]
        keys = [*tps, *((mark, tp.topic, tp.partition) for mark, tp in overtaken)]
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

        self._begin_pending(keys)
        try:
            self._ledger.write(entries, durable)
        except BaseException:
            self._end_pending(keys)
            raise

    def _begin_pending(self, keys: Iterable[_PositionKey]) -> None:
        for key in keys:
            self._pending[key] = self._pending.get(key, 0) + 1

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
        if key in self._pending or self._large.is_pending(name, (topic, partition)):
            return True
        return promised is not None and not promised.durable

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
        for mark, tp in overtaken:
            self._set(mark, tp)
        if overtaken:
            self._ledger.write_or_owe([_entry(mark, tp) for mark, tp in overtaken])
        self._dead.add(number)
        for name in list(self._in_topic.get(topic, ())):
            tps = [tp for tp in self._names.get(name, ()) if tp[0] == topic]
            for first in range(0, len(tps), _DROPPED_A_STEP):
                self._forget(name, tps[first : first + _DROPPED_A_STEP], number)
                yield
        self._dead.discard(number)

    def _forget(self, name: str, tps: list[tuple[str, int]], number: int) -> None:
        """Drops those of a name's positions that are of the topic with this number."""
        positions = self._names.get(name, {})
        found = [(tp, positions[tp]) for tp in tps if tp in positions]
        gone = [tp for tp, position in found if position.number in (0, number)]
        for tp in gone:
            self._remove(name, tp)
        # A newer one on its way to the disk replaces this one.
        erased = [
            tp
            for tp in gone
            if (name, *tp) not in self._pending and not self._large.is_pending(name, tp)
        ]
        if erased:
            self._ledger.write_or_owe([(_key(name, *tp), None) for tp in erased])

    def _take(self, key: bytes, value: bytes | None) -> None:
        name, topic, partition = _decode_key(key)
        if value is None:
            if (topic, partition) in self._names.get(name, {}):
                self._remove(name, (topic, partition))
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
                for tp in list(self._names.get(name, ())):
                    position = self._names.get(name, {}).get(tp)
                    if position is not None:
                        yield _entry(name, position)
            if len(some) < _NAMES_A_PAGE:
                return

    def _set(self, name: str, position: Position) -> None:
        if self._large.taking_in:
            self._large.overtake(name, (position.topic, position.partition))
        self._put(name, position)

    def _put(self, name: str, position: Position) -> None:
        positions = self._names.get(name)
        if positions is None:
            positions = self._names[name] = {}
            self._sorted.add(name)
        if (position.topic, position.partition) not in positions:
            self.count += 1
            names = self._in_topic.setdefault(position.topic, {})
            names[name] = names.get(name, 0) + 1
        positions[position.topic, position.partition] = position

    def _remove(self, name: str, tp: tuple[str, int]) -> None:
        positions = self._names[name]
        del positions[tp]
        if not positions:
            del self._names[name]
            self._sorted.remove(name)
        self._uncount(name, tp[0])

    def _uncount(self, name: str, topic: str) -> None:
        self.count -= 1
        names = self._in_topic[topic]
        names[name] -= 1
        if not names[name]:
            del names[name]
            if not names:
                del self._in_topic[topic]


def _outlives_starts(number: int) -> bool:
    """Whether a topic keeps its number after a restart."""
    return 0 < number < MEMORY_NUMBERS_FROM


def _overtaken_topic(name: str, topic: str) -> str:
    """The topic under which a mark lists an overtaken position: it names both the durable name and
    the topic."""
    return f"{name}\n{topic}"


def _add(change: LargeChange, entries: list[Entry]) -> None:
    """Adds entries to the batch of a change."""
    keys = [key for key, _ in entries]
    change.batch.add(keys, [value for _, value in entries])
    change.keys.update(keys)


def _key(name: str, topic: str, partition: int) -> bytes:
    return _encode((name, topic, partition))


def _entry(name: str, position: Position) -> tuple[bytes, bytes]:
    key = _key(name, position.topic, position.partition)
    membership = position.membership if isinstance(position, MemberPosition) else 0
    return key, _encode(_Value(position.offset, position.epoch, position.number, membership))
