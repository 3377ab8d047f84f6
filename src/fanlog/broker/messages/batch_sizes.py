"""What a batch may hold, judged by what it says of itself: constant work, and nothing is unpacked.

A compressed batch is as large as it will be, not as it is. So compression passes no limit: not the
topic's `message_bytes_max`, and not what a batch may be at all.
"""

from __future__ import annotations

from collections.abc import Callable

from fanlog.broker.messages.topics import BrokerTopic
from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError, FormatError, MessageTooLargeError, UnreadableError, too_large
from fanlog.format.codecs import RATIO_FREE_BYTES, UnpackLimits
from fanlog.format.columns import (
    EVENT_TIMES,
    SIZES,
    TIME_RANGE,
    columns_bytes_min,
    read_sizes,
    sizes_at,
)
from fanlog.format.header import CLIENT_PART, CLIENT_PART_AT

# What a batch has beside its messages: in all, and for each of them.
_BATCH_OVERHEAD_BYTES = 4096
_RECORD_OVERHEAD_BYTES = 64


def unpack_limits(options: BrokerOptions) -> UnpackLimits:
    """What the broker itself unpacks, wherever it does."""
    return UnpackLimits(options.batch_unpacked_bytes_max, options.compression_ratio_max)


def _fitting(unpacked_bytes_max: int) -> Callable[[bytes, int, int, int], bool]:
    """The check that most compressed batches pass, kept short: whether a batch is so small that
    there is no fault. Its `body` begins with what its checksum covers."""
    unpack, size = SIZES.unpack_from, SIZES.size
    plain_at, behind_times_at = CLIENT_PART.size, CLIENT_PART.size + TIME_RANGE.size

    def fits(body: bytes, flags: int, count: int, sound_bytes: int) -> bool:
        at = behind_times_at if flags & EVENT_TIMES else plain_at
        rest = len(body) - at - size
        if rest < 0:
            return False
        unpacked_bytes, packed_bytes = unpack(body, at)
        return (
            packed_bytes <= rest
            and 4 * count < unpacked_bytes <= sound_bytes
            and unpacked_bytes <= unpacked_bytes_max
        )

    return fits


class Sizes:
    def __init__(self, options: BrokerOptions) -> None:
        self._limits = unpack_limits(options)
        # Below it the ratio does not matter, so that one comparison says enough.
        self.fits = _fitting(min(RATIO_FREE_BYTES, options.batch_unpacked_bytes_max))

    def fault(
        self, topic: BrokerTopic, body: bytes, codec: int, flags: int, count: int
    ) -> FanlogError | None:
        """Why a batch of this size is refused. `body` begins with what its checksum covers."""
        size = CLIENT_PART_AT + len(body)
        if codec:
            at = CLIENT_PART.size + sizes_at(flags, count)
            try:
                unpacked_bytes, packed_bytes = read_sizes(body, at, len(body))
                if unpacked_bytes < columns_bytes_min(count):
                    raise FormatError(f"{count} records don't fit into {unpacked_bytes} bytes")
            except FormatError as fault:
                return UnreadableError(f"A batch for topic {topic.name!r} can't be read: {fault}.")
            try:
                self._limits.check(unpacked_bytes, packed_bytes)
            except FormatError as fault:
                return MessageTooLargeError(
                    f"A compressed batch for topic {topic.name!r} is too large: {fault} "
                    "(broker.batch_unpacked_bytes_max and broker.compression_ratio_max in the "
                    "broker's settings). Send smaller batches."
                )
            size = CLIENT_PART_AT + at + unpacked_bytes
        most = topic.settings.message_bytes_max
        if size > _BATCH_OVERHEAD_BYTES + count * (most + _RECORD_OVERHEAD_BYTES):
            about = f"about {size}" if count == 1 else f"more than {most}"
            return too_large(f"A message has {about} bytes", topic.name, most)
        return None
