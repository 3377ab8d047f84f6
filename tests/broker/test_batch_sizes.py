"""Compression passes no limit: a batch counts as what it unpacks to, and nothing is unpacked to
find that out."""

from __future__ import annotations

import pytest

from fanlog.config import BrokerOptions
from fanlog.errors import FanlogError, FormatError, MessageTooLargeError, UnreadableError
from fanlog.format import codecs
from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec
from fanlog.format.columns import EVENT_TIMES, SIZES
from fanlog.format.header import RECORDS_MAX
from fanlog.model import KIB, MIB
from tests.broker.stage import Publisher, Stage, stage
from tests.format.crafted import bomb, column, crafted

PACKED = (Codec.ZLIB, Codec.ZSTD, Codec.LZ4)


@pytest.fixture(autouse=True)
def nothing_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise AssertionError("a batch was unpacked between socket and log")

    monkeypatch.setattr(codecs, "unpack", refuse)


def refusal(on: Stage, data: bytes) -> FanlogError:
    """Why the batch was not taken; what comes behind it is."""
    by = Publisher()
    small = encode_batch([b"small"], topic=number(on))
    on.core.take(data + small, 0, by)
    on.run()
    assert len(by.acks) == 1
    ((_, _, error),) = by.refusals
    return error


def number(on: Stage) -> int:
    return on.core.open_topic("t", create=True).number


@pytest.mark.parametrize("codec", PACKED)
def test_one_message_counts_as_what_it_unpacks_to(codec: Codec) -> None:
    with stage(message_bytes_max=100 * KIB) as on:
        error = refusal(on, encode_batch([bytes(200 * KIB)], codec=codec, topic=number(on)))
        assert isinstance(error, MessageTooLargeError)
        assert "message_bytes_max" in str(error)
        by = Publisher()
        on.core.take(encode_batch([bytes(100 * KIB)], codec=codec, topic=number(on)), 0, by)
        on.run()
        assert len(by.acks) == 1


def test_several_messages_that_can_not_all_be_small_enough_are_refused() -> None:
    with stage(message_bytes_max=10 * KIB) as on:
        values = [b"", bytes(40 * KIB), b""]
        for codec in Codec:
            error = refusal(on, encode_batch(values, codec=codec, topic=number(on)))
            assert isinstance(error, MessageTooLargeError)


@pytest.mark.parametrize("codec", PACKED)
def test_a_batch_may_unpack_to_so_much_and_no_more(codec: Codec) -> None:
    options = BrokerOptions(batch_unpacked_bytes_max=1 * MIB)
    with stage(options=options, message_bytes_max=64 * MIB) as on:
        error = refusal(on, bomb(2 * MIB, codec=codec, topic=number(on)))
        assert isinstance(error, MessageTooLargeError)
        assert "batch_unpacked_bytes_max" in str(error)


def test_a_batch_may_be_packed_so_tightly_and_no_more() -> None:
    with stage(message_bytes_max=64 * MIB) as on:
        error = refusal(on, bomb(12 * MIB, topic=number(on)))
        assert isinstance(error, MessageTooLargeError)
        assert "compression_ratio_max" in str(error)


@pytest.mark.parametrize(
    ("body", "flags"),
    [
        (b"", 0),
        (SIZES.pack(64, 900) + bytes(80), 0),
        (SIZES.pack(64, 0xFFFFFFFF), 0),
        (bytes(16), EVENT_TIMES),
        (bytes(20), EVENT_TIMES),
        (SIZES.pack(4, 8) + bytes(8), 0),
    ],
)
def test_sizes_that_can_not_be_are_refused(body: bytes, flags: int) -> None:
    with stage() as on:
        data = crafted(body or bytes(8), codec=Codec.ZSTD, flags=flags, topic=number(on))
        assert isinstance(refusal(on, data), UnreadableError)


def test_records_that_are_not_there_are_not_taken() -> None:
    """They would take offsets, and a queue would make a job of each."""
    with stage() as on:
        packed = crafted(
            SIZES.pack(64, 8) + bytes(8), codec=Codec.ZSTD, count=RECORDS_MAX, topic=number(on)
        )
        assert isinstance(refusal(on, packed), UnreadableError)
        with pytest.raises(FormatError):
            on.core.take(crafted(column([0, 0]), count=2, topic=number(on)), 0, Publisher())
        assert on.core.catalog.get("t").partitions[0].next_offset == 1
