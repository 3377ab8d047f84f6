"""Which transactions were committed, by their ids, for as long as somebody may ask again. A ledger
keeps them, many to an entry: what was committed in the same second is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from fanlog.broker.clocks import SECOND_US, Clocks, moment_of_us, wall_time_us
from fanlog.broker.state.ledger import Done, Ledger, LedgerHost
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError

_IDS_PER_ENTRY = 1000

# What it means that entries are lost.
_LOSS = "a transaction that was committed before is stored again if its commit is repeated"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, int]]).decode


class CommittedIds:
    """Ids and when each was committed, the oldest first, in entries as the ledger has them: by the
    monotonic clock, and in the ledger by the wall clock."""

    def __init__(self, host: LedgerHost, options: BrokerOptions, clocks: Clocks) -> None:
        self._options = options
        self._clocks = clocks
        self._ledger = Ledger(host, "transaction-ids", self._everything, _LOSS)
        self._known: set[str] = set()
        self._entries: deque[list[tuple[str, int]]] = deque()

    def __contains__(self, id: str) -> bool:
        return id in self._known

    def __len__(self) -> int:
        return len(self._known)

    def load(self) -> None:
        times_us: dict[str, int] = {}

        def take(key: bytes, value: bytes | None) -> None:
            del key
            if value is not None:
                times_us.update(_decode(value))

        self._ledger.load(take)
        # A snapshot lists some of them twice, and not in their first order.
        stored = sorted(times_us.items(), key=lambda known: known[1])
        kept_us, clocks = self._kept_us, self._clocks
        self._put([(id, moment_of_us(clocks, time_us, kept_us)) for id, time_us in stored])

    @property
    def _kept_us(self) -> int:
        return self._options.transaction_ids_seconds * SECOND_US

    def add(self, ids: Iterable[str], done: Done) -> None:
        """Remembers ids, which are durable when `done` says so. Raises what the log raises."""
        new, now_us = list(ids), self._clocks.now_us()

        def durable(fault: FanlogError | None) -> None:
            if fault is None:
                moment_us = self._clocks.monotonic_us()
                self._put([(id, moment_us) for id in new if id not in self._known])
                self.expire()
            done(fault)

        self._ledger.write([_entry([(id, now_us) for id in new])], durable)

    def _put(self, new: list[tuple[str, int]]) -> None:
        self._known.update(id for id, _ in new)
        for known in new:
            if not self._entries or len(self._entries[-1]) >= _IDS_PER_ENTRY:
                self._entries.append([])
            self._entries[-1].append(known)

    def expire(self) -> None:
        """Forgets the oldest: by age, and past the maximum number. The ledger does with its next
        snapshot."""
        oldest_us = self._clocks.monotonic_us() - self._kept_us
        too_many = len(self._known) - self._options.transaction_ids_max
        while self._entries:
            first = self._entries[0]
            gone = 0
            for _, time_us in first:
                if time_us >= oldest_us and gone >= too_many:
                    break
                gone += 1
            self._known.difference_update(id for id, _ in first[:gone])
            if gone < len(first):
                del first[:gone]
                return
            too_many -= gone
            self._entries.popleft()

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        shift_us = wall_time_us(self._clocks, 0)
        for known in list(self._entries):
            if known:
                yield _entry([(id, time_us + shift_us) for id, time_us in known])


def _entry(ids: list[tuple[str, int]]) -> tuple[bytes, bytes]:
    """The key has no meaning: it only keeps entries apart. Ids are added, and never removed."""
    return ids[0][0].encode(), _encode(ids)
