"""Large batches are decoded in threads: nobody waits for it, order stays, and memory is bounded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fanlog.broker.messages.following import unfollow
from fanlog.broker.messages.unpacking import Unpacker
from fanlog.config import BrokerOptions
from fanlog.format import columns
from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec, UnpackLimits
from fanlog.format.columns import SIZES
from fanlog.model import KIB, MIB, SlowPolicy
from tests.broker.stage import HandRuntime, Peer, Publisher, Stage, stage
from tests.broker.test_views import Lines, follower
from tests.format.crafted import crafted

OPTIONS = BrokerOptions(unpack_loop_bytes_max=64 * KIB)
CHANCE = random.Random(1)


class Unpacked:
    """What was unpacked: how much, and whether in one of the broker's threads."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.in_background: list[bool] = []
        self.background = False


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Unpacked:
    """Counts what is unpacked. On a stage, a thread's work is what `in_background` was given."""
    seen = Unpacked()
    unpack, in_background = columns.unpack, HandRuntime.in_background

    def counted(codec: int, data: bytes, size: int, limits: UnpackLimits) -> bytes:
        seen.sizes.append(size)
        seen.in_background.append(seen.background)
        return unpack(codec, data, size, limits)

    @contextmanager
    def marked() -> Iterator[None]:
        seen.background = True
        try:
            yield
        finally:
            seen.background = False

    def watched(self, work, done):  # type: ignore[no-untyped-def]
        def inside():  # type: ignore[no-untyped-def]
            with marked():
                return work()

        in_background(self, inside, done)

    monkeypatch.setattr(columns, "unpack", counted)
    monkeypatch.setattr(HandRuntime, "in_background", watched)
    return seen


def large(mark: bytes, size: int) -> bytes:
    """A value that packs well, but not so well that it is sent as it is."""
    return mark + CHANCE.randbytes(size // 50) + bytes(size)


def publish(on: Stage, values: list[bytes], topic: str = "t", codec: Codec = Codec.ZSTD) -> None:
    number = on.core.open_topic(topic, create=True).number
    by = Publisher()
    on.core.take(encode_batch(values, codec=codec, topic=number), 0, by)
    assert not by.refusals


class Marks(Lines):
    """A view that shows each value's first byte, and how long it is."""

    def render(self, values):  # type: ignore[no-untyped-def]
        self.rendered.append([*values])
        return b"".join(b"%c%d " % ((value or b"-")[:1], len(value or b"")) for value in values)


def test_a_large_batch_is_decoded_in_a_thread_and_comes_in_its_place(unpacked: Unpacked) -> None:
    with stage(options=OPTIONS) as on:
        view = Marks()
        peers = [follower(on, view)[0] for _ in range(3)]
        big = large(b"b", 500 * KIB)
        publish(on, [b"a"])
        on.run()
        publish(on, [big])
        on.core.turns.end()
        # It is on its way, and what comes behind it waits.
        publish(on, [b"c"])
        on.core.turns.end()
        assert peers[0].taken == b"a1 "
        on.run()
        assert [peer.taken for peer in peers] == [b"a1 b%d c1 " % len(big)] * 3
        publish(on, [b"d"])
        on.run()
        assert peers[0].taken.endswith(b"c1 d1 ")
        # Once for all of them.
        assert unpacked.in_background.count(True) == 1
        assert all(
            inside or size <= 64 * KIB
            for size, inside in zip(unpacked.sizes, unpacked.in_background, strict=True)
        )


def test_many_small_batches_that_come_together_are_not_unpacked_on_the_loop(
    unpacked: Unpacked,
) -> None:
    with stage(options=OPTIONS) as on:
        peer, _ = follower(on, Marks())
        for i in range(26):
            publish(on, [large(b"%c" % (97 + i), 30 * KIB)])
        on.run()
        assert [part[:1] for part in peer.taken.split()] == [b"%c" % (97 + i) for i in range(26)]
        assert all(unpacked.in_background)


def test_a_flood_is_rendered_some_at_a_time(unpacked: Unpacked) -> None:
    """A piece of log that unpacks to a hundred times its size is not rendered as a whole."""
    with stage(options=OPTIONS, tail_bytes=64 * MIB) as on:
        view = Marks()
        peer, _ = follower(on, view)
        for _ in range(20):
            publish(on, [large(b"x", 900 * KIB)])
        on.run()
        assert len(peer.taken.split()) == 20
        assert max(sum(len(v or b"") for v in values) for values in view.rendered) < 2 * MIB


def test_one_that_is_stuck_gets_it_when_it_takes_something_again() -> None:
    with stage(options=OPTIONS, tail_bytes=64 * MIB) as on:
        slow, quick = follower(on, Marks())[0], follower(on, Marks())[0]
        publish(on, [b"a"])
        on.run()
        slow.room = 0
        for mark in (b"b", b"c", b"d"):
            publish(on, [large(mark, 100 * KIB)])
            on.run()
        assert slow.taken == b"a1 "
        slow.drain(on.core)
        on.run()
        slow.drain(on.core)
        on.run()
        assert [part[:1] for part in slow.taken.split()] == [b"a", b"b", b"c", b"d"]
        assert slow.taken == quick.taken


def test_one_that_goes_while_its_batch_is_unpacked_is_sent_nothing() -> None:
    with stage(options=OPTIONS) as on:
        peer, subscription = follower(on, Marks())
        publish(on, [large(b"a", 100 * KIB)])
        on.core.turns.end()
        unfollow(on.core.fan_out, subscription, on.core.catalog.get("t"))
        on.run()
        assert peer.taken == b""


def test_a_reader_of_several_topics_gets_each_topic_in_order() -> None:
    with stage(options=OPTIONS) as on:
        peer = Peer()
        for name in "st":
            _, subscription = follower(on, Marks(), peer, topic=name)
            subscription.cursors[0].several = True
        for i in range(5):
            for name in "st":
                mark = name.encode() if i % 2 else name.upper().encode()
                publish(on, [large(mark, 100 * KIB * (i % 2))], name)
            if i != 2:
                on.run()
        on.run()
        marks = [part[:1] for part in peer.taken.split()]
        assert [m for m in marks if m in b"sS"] == [b"S", b"s", b"S", b"s", b"S"]
        assert [m for m in marks if m in b"tT"] == [b"T", b"t", b"T", b"t", b"T"]


def test_one_that_reads_from_disk_gets_large_batches_too(tmp_path: Path) -> None:
    with stage(tmp_path, options=OPTIONS, tail_bytes=4 * KIB) as on:
        peer, _ = follower(on, Marks(), policy=SlowPolicy.CATCH_UP)
        peer.room = 0
        publish(on, [b"a"])
        on.run()
        for mark in (b"b", b"c", b"d"):
            publish(on, [large(mark, 300 * KIB)])
            publish(on, [mark.upper()])
            on.run()
        for _ in range(10):
            peer.drain(on.core)
            on.run()
        assert [part[:1] for part in peer.taken.split()] == [b"%c" % c for c in b"abBcCdD"]


def test_a_batch_that_lies_about_its_size_is_left_out_and_noted() -> None:
    with stage(options=OPTIONS) as on:
        peer, _ = follower(on, Marks())
        number = on.core.catalog.get("t").number
        packed = CHANCE.randbytes(1000)
        lie = crafted(SIZES.pack(500_000, 1000) + packed, codec=Codec.ZSTD, topic=number)
        for _ in range(3):
            on.core.take(lie, 0, Publisher())
            publish(on, [b"a"])
            on.run()
        assert peer.taken == b"a1 " * 3
        assert on.counters("t")["lost_records"] == 3
        (drop,) = on.core.drop_notes.drops()
        assert (drop.kind, drop.records, drop.times) == ("unreadable", 3, 3)


def test_what_is_unpacked_at_a_time_is_bounded() -> None:
    runtime = HandRuntime()
    unpacker = Unpacker(runtime, BrokerOptions(unpack_thread_bytes_max=1 * MIB))
    done: list[int | Exception] = []
    for i in range(10):
        unpacker.in_thread(700 * KIB, lambda i=i: i, done.append)  # type: ignore[misc]
        assert unpacker.running_bytes == 700 * KIB
    # One that is larger than all is done by itself.
    unpacker.in_thread(9 * MIB, lambda: 10, done.append)
    runtime.run()
    assert done == list(range(11))
    assert unpacker.running_bytes == 0
