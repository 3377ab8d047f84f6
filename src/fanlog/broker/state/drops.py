"""What readers missed, written down: the internal topic `_fanlog.drops`, JSON records, one for each
reader, partition and kind in about a second. Notes are written in one batch, once a second at most,
and at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from fanlog.broker.messages.drop_notes import DROPS_TOPIC, Drop, DropNotes
from fanlog.broker.state.ledger import LedgerHost
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError
from fanlog.format.batch import encode_batch
from fanlog.model import MIB, TopicSettings

logger = logging.getLogger("fanlog.broker")

_WRITE_US = 1_000_000
_SEGMENT_BYTES = 4 * MIB
_TAIL_BYTES = 1 * MIB


class Drops:
    """Writes notes. Without a data folder they are dropped: the counters have them."""

    def __init__(
        self,
        notes: DropNotes,
        host: LedgerHost,
        options: BrokerOptions,
        monotonic_us: Callable[[], int],
    ) -> None:
        self._notes = notes
        self._host = host
        self._monotonic_us = monotonic_us
        self._options = options
        self._settings = _settings(options)
        self._next_us = 0
        self._failing = False

    def settings_changed(self) -> None:
        self._settings = _settings(self._options)
        self._host.alter_internal(DROPS_TOPIC, self._settings)

    def make_topic(self) -> None:
        """Makes the topic before there is something to write, for readers that want to follow
        it."""
        self._host.make_internal(DROPS_TOPIC, self._settings)

    def tick(self) -> None:
        """Writes the waiting notes, if the last write is a second ago."""
        if not self._notes:
            return
        now_us = self._monotonic_us()
        if now_us >= self._next_us:
            self._next_us = now_us + _WRITE_US
            self.write()

    def write(self) -> None:
        """Writes the waiting notes. If that can't be done now, the notes stay and are merged on."""
        if not self._notes:
            return
        try:
            partition = self._host.make_internal(DROPS_TOPIC, self._settings)
            if partition is not None:
                self._host.write_internal(partition, _batch(self._notes.drops()), None)
        except FanlogError as fault:
            if not self._failing:
                logger.warning("records of what readers missed are written later: %s", fault)
            self._failing = True
            return
        self._failing = False
        self._notes.clear()


def _settings(options: BrokerOptions) -> TopicSettings:
    return TopicSettings(
        durability="os",
        retention_seconds=options.drops_retention_seconds,
        retention_bytes=options.drops_retention_bytes,
        segment_bytes=min(_SEGMENT_BYTES, options.drops_retention_bytes),
        tail_bytes=_TAIL_BYTES,
    )


def _batch(drops: list[Drop]) -> bytes:
    encode = msgspec.json.Encoder().encode
    return encode_batch(
        [encode(drop) for drop in drops], keys=[drop.topic.encode() for drop in drops]
    )
