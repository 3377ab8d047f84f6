"""Delayed messages on a stage: what a client does, and what the node's clock does."""

from __future__ import annotations

from itertools import count

from fanlog.errors import FanlogError
from fanlog.format.batch import encode_batch
from fanlog.format.schedules import SCHEDULED_TOPIC, Delayed, encode_delayed, record_key
from tests.broker.stage import Publisher, Stage
from tests.broker.transactions.staging import settle

SECOND_US = 1_000_000
_nonces = count(1)


def record(id: str, topic: str, value: bytes | None, **given: object) -> tuple[bytes, bytes]:
    """The key and the value of a delayed message's record."""
    delayed = Delayed(topic, value, **given)  # type: ignore[arg-type]
    return record_key(next(_nonces), id), encode_delayed(delayed)


def publish_later(
    on: Stage, records: list[tuple[bytes, bytes]], times_us: list[int], by: Publisher | None = None
) -> Publisher:
    """Hands a batch of delayed messages in; a time below 0 is a delay."""
    origin = by or Publisher()
    keys, values = zip(*records, strict=True)
    number = on.core.open_topic(SCHEDULED_TOPIC, create=True).number
    data = encode_batch(values, keys=keys, event_times_us=times_us, topic=number)
    assert on.core.take(data, 0, origin) == len(data)
    return origin


def later(on: Stage, id: str, value: bytes, time_us: int, topic: str = "t") -> Publisher:
    return publish_later(on, [record(id, topic, value)], [time_us])


def cancel(on: Stage, id: str) -> list[bool | FanlogError]:
    """What a cancellation is answered with, once the stage has settled."""
    answers: list[bool | FanlogError] = []

    def done(got: list[bool] | FanlogError) -> None:
        answers.extend([got] if isinstance(got, FanlogError) else got)

    on.core.schedule.cancel([id], done)
    return answers


def tick(on: Stage, times: int = 8) -> None:
    """The clock ticks, and everything that follows from that happens."""
    for _ in range(times):
        on.core.schedule.tick()
        settle(on)


def arrived(on: Stage, topic: str = "t") -> list[bytes]:
    found = on.core.catalog.find(topic)
    if found is None:
        return []
    return [v or b"" for p in range(len(found.partitions)) for v in on.values(topic, p)]
