"""Which delayed messages there are: small in memory, and due by the right clock."""

from __future__ import annotations

import gc
import random
import tracemalloc

from fanlog.broker.schedule.pending import MOMENT_US_MAX, Pending
from tests.broker.stage import HandRuntime

SECOND_US = 1_000_000


def put(pending: Pending, id: str, offset: int, time_us: int, append_time_us: int = 0) -> None:
    by_wall = time_us >= 0
    if by_wall:
        moment_us = min(time_us, MOMENT_US_MAX)
    else:
        moment_us = pending.delay_moment(time_us, append_time_us)
    pending.add(offset, id.encode(), offset, moment_us, by_wall=by_wall)


def test_a_message_of_an_id_takes_the_place_of_the_one_before() -> None:
    runtime = HandRuntime()
    pending = Pending(runtime)
    put(pending, "a", 1, runtime.now_us() + 5 * SECOND_US)
    put(pending, "a", 2, runtime.now_us() + 9 * SECOND_US)
    assert len(pending) == 1
    assert pending.remove(b"a", 1) is None
    runtime.time_us += 6 * SECOND_US
    assert not pending.take_due(10)
    runtime.time_us += 3 * SECOND_US
    assert list(pending.take_due(10)) == [2]
    entry = pending.remove(b"a", 2)
    assert entry is not None
    assert entry.offset == 2
    assert len(pending) == 0


def test_a_time_is_one_of_the_wall_clock_and_a_delay_passes_whoever_sets_it() -> None:
    runtime = HandRuntime()
    pending = Pending(runtime)
    now_us = runtime.now_us()
    put(pending, "time", 1, now_us + 60 * SECOND_US)
    put(pending, "delay", 2, -60 * SECOND_US, now_us)
    runtime.wall_shift_us = -3600 * SECOND_US
    runtime.time_us += 60 * SECOND_US
    assert list(pending.take_due(10)) == [2]
    runtime.wall_shift_us = 3600 * SECOND_US
    assert list(pending.take_due(10)) == [1]
    put(pending, "next", 3, -60 * SECOND_US, runtime.now_us())
    runtime.wall_shift_us += 3600 * SECOND_US
    assert not pending.take_due(10)


def test_after_a_start_nobody_waits_for_longer_than_was_asked_for() -> None:
    runtime = HandRuntime()
    pending = Pending(runtime)
    future_us = runtime.now_us() + 7200 * SECOND_US
    put(pending, "of the future", 1, -60 * SECOND_US, future_us)
    put(pending, "half over", 2, -60 * SECOND_US, runtime.now_us() - 30 * SECOND_US)
    put(pending, "long over", 3, -60 * SECOND_US, runtime.now_us() - 3000 * SECOND_US)
    assert list(pending.take_due(10)) == [3]
    runtime.time_us += 30 * SECOND_US
    assert list(pending.take_due(10)) == [2]
    runtime.time_us += 30 * SECOND_US
    assert list(pending.take_due(10)) == [1]


def test_times_beyond_all_reason_are_kept_apart_and_break_nothing() -> None:
    pending = Pending(HandRuntime())
    put(pending, "at", 1, (1 << 63) - 1)
    put(pending, "delay", 2, -(1 << 63))
    assert not pending.take_due(10)
    assert pending.remove(b"at", 1) is not None
    assert pending.remove(b"delay", 2) is not None


def test_100_000_messages_take_less_than_100_bytes_each() -> None:
    runtime = HandRuntime()
    pending = Pending(runtime)
    chance = random.Random(1)
    tracemalloc.start()
    try:
        for i in range(100_000):
            due_us = runtime.now_us() + chance.randrange(10**13)
            put(pending, f"a-long-id-of-a-message-{i}", i, due_us)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 100_000 < 100
    for i in range(0, 100_000, 7):
        entry = pending.find(f"a-long-id-of-a-message-{i}".encode())
        assert entry is not None
        assert entry.offset == i
