"""Which transactions were committed, by their ids, for as long as somebody may ask again. A ledger
keeps them, many to an entry: what was committed in the same second is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from fanlog.broker.clocks import SECOND_US, Clocks, moment_of_us, wall_time_us
from fanlog.broker.ledger import LEDGER_SETTINGS, Done, Ledger, LedgerHost
from fanlog.config import BrokerOptions
from fanlog.model import MIB

_IDS_PER_ENTRY = 1000

# An entry of this kind is what a commit waits for: it goes through group commit.
SYNCED_LEDGER = msgspec.structs.replace(LEDGER_SETTINGS, durability="fsync", segment_bytes=4 * MIB)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, int]]).decode


class CommittedIds:
    """Ids and when each was committed, the oldest first: by the monotonic clock, and in the ledger
    by the wall clock."""

    def __init__(self, host: LedgerHost, options: BrokerOptions, clocks: Clocks) -> None:
        self._options = options
        self._clocks = clocks
        self._ledger = Ledger(host, "transaction-ids", self._everything, SYNCED_LEDGER)
        self._times_us: dict[str, int] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._times_us

    def __len__(self) -> int:
        return len(self._times_us)

    def load(self) -> None:
        self._ledger.load(self._take)
        # A snapshot tells some of them twice, and not where they first stood.
        stored = sorted(self._times_us.items(), key=lambda known: known[1])
        kept_us, clocks = self._kept_us, self._clocks
        self._times_us = {id: moment_of_us(clocks, time_us, kept_us) for id, time_us in stored}

    @property
    def _kept_us(self) -> int:
        return self._options.transaction_ids_seconds * SECOND_US

    def add(self, ids: Iterable[str], done: Done) -> None:
        """Remembers ids, which are durable when `done` says so. Raises what the log raises."""
        new, now_us = list(ids), self._clocks.now_us()
        self._ledger.write([_entry([(id, now_us) for id in new])], done)
        self._times_us.update(dict.fromkeys(new, self._clocks.monotonic_us()))
        self.expire()

    def expire(self) -> None:
        """Forgets the oldest: by age, and past so many. The ledger does with its next snapshot."""
        oldest_us = self._clocks.monotonic_us() - self._kept_us
        too_many = len(self._times_us) - self._options.transaction_ids_max
        gone: list[str] = []
        for id, time_us in self._times_us.items():
            if time_us >= oldest_us and len(gone) >= too_many:
                break
            gone.append(id)
        for id in gone:
            del self._times_us[id]

    def _take(self, key: bytes, value: bytes | None) -> None:
        del key
        if value is not None:
            self._times_us.update(_decode(value))

    def _everything(self) -> Iterator[tuple[bytes, bytes]]:
        shift_us = wall_time_us(self._clocks, 0)
        known = ((id, time_us + shift_us) for id, time_us in self._times_us.items())
        while some := list(islice(known, _IDS_PER_ENTRY)):
            yield _entry(some)


def _entry(ids: list[tuple[str, int]]) -> tuple[bytes, bytes]:
    """The key says nothing but keeps entries apart: ids are added, and never taken back."""
    return ids[0][0].encode(), _encode(ids)
