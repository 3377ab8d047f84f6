"""Messages that are encoded some items at a time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from fanlog.format import long_messages
from fanlog.format.long_messages import EncodedMessage, encode_around, encode_items
from fanlog.format.messages import NamedTopic
from fanlog.model import GroupInfo, GroupPartitionInfo

PARTITIONS = tuple(
    GroupPartitionInfo(
        topic="t", partition=i, committed=i or None, start_offset=0, end_offset=i, lag=i
    )
    for i in range(300)
)


def encoded(items: Sequence[msgspec.Struct]) -> tuple[EncodedMessage, int]:
    """And the number of steps that it took."""
    steps, taken = encode_items(items), 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, taken
        taken += 1


def joined(message: EncodedMessage) -> bytes:
    return b"".join(message.parts)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 127, 128, 129, 65_535, 65_536, 70_000])
def test_the_bytes_are_those_of_a_message_encoded_at_once(count: int) -> None:
    items = [NamedTopic(str(i)) for i in range(count)]
    assert joined(encoded(items)[0]) == msgspec.msgpack.encode(items)


def test_each_step_encodes_a_few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_messages, "_ITEMS_A_STEP", 7)
    items, steps = encoded(PARTITIONS)
    assert steps == -(-len(PARTITIONS) // 7)
    group = GroupInfo(name="g", kind="stream", state="active", partitions=PARTITIONS)
    assert joined(encode_around(group, "partitions", items)) == msgspec.msgpack.encode(group)


def test_a_message_has_no_more_parts_than_a_system_call_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_messages, "_ITEMS_A_STEP", 1)
    monkeypatch.setattr(long_messages, "_PART_BYTES", 1)
    items = [NamedTopic(str(i)) for i in range(2000)]
    found, _ = encoded(items)
    assert len(found.parts) == 1
    assert joined(found) == msgspec.msgpack.encode(items)
    few, _ = encoded(items[:500])
    assert len(few.parts) == 501
    assert few.size == len(msgspec.msgpack.encode(items[:500]))
