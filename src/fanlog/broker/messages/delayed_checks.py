"""What clients may put into the topic of delayed messages. Batches are checked before they are
accepted, so that readers of the topic can rely on them."""

from __future__ import annotations

from functools import lru_cache

from fanlog.broker.names import check_public_name
from fanlog.errors import FanlogError, FormatError, InvalidArgumentError
from fanlog.format.columns import ColumnReader
from fanlog.format.schedules import NONCE_BYTES, checked_id, decode_delayed

# Checking a record takes about as long as unpacking this number of bytes.
RECORD_WORK_BYTES = 256

_check_target = lru_cache(maxsize=1024)(check_public_name)


def scheduled_fault(
    columns: ColumnReader,
    claimed_us: tuple[int, int] | None,
    targets: set[str],
    keys: set[bytes],
) -> FanlogError | None:
    """What is wrong with a client's batch of delayed messages, whose columns are checked. It says
    itself that its times are within the range `claimed_us`, which was looked at before. The topics
    that the messages are for are added to `targets`, and their own keys to `keys`."""
    times = columns.event_times_us
    if columns.key_column is None or times is None or claimed_us is None:
        return InvalidArgumentError(
            "A delayed message needs a key and a time. Schedule it with publish(delay_seconds=…)."
        )
    if min(times) < claimed_us[0] or max(times) > claimed_us[1]:
        return FormatError("The times of delayed messages are not within the range that is given.")
    for key, value in zip(columns.keys(), columns.values(), strict=True):
        try:
            targets.add(_check(key, value))
            keys.add(key or b"")
        except FanlogError as fault:
            return fault
    return None


def _check(key: bytes | None, value: bytes | None) -> str:
    if key is None or value is None:
        raise InvalidArgumentError(
            "A delayed message has a key and a value. Cancel one with cancel_scheduled(id)."
        )
    try:
        checked_id(key[NONCE_BYTES:].decode())
    except UnicodeDecodeError as fault:
        raise FormatError(f"The id of a delayed message is not UTF-8: {fault}.") from fault
    delayed = decode_delayed(value)
    _check_target(delayed.topic)
    if delayed.repeat is not None:
        raise InvalidArgumentError("A schedule is added with add_schedule, not published.")
    return delayed.topic
