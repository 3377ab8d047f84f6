"""Delayed messages that a lying or careless peer publishes: they harm nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.broker import slices
from fanlog.config import BrokerOptions
from fanlog.errors import FormatError, InvalidArgumentError, LimitError
from fanlog.format.batch import encode_batch
from fanlog.format.checksum import crc32c
from fanlog.format.columns import TIME_RANGE
from fanlog.format.header import CHECKSUMS, CLIENT_PART, CLIENT_PART_AT
from fanlog.format.messages import AddSchedule
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.model import MIB
from tests.broker.schedule.scheduling import SECOND_US, arrived, publish_later, record, tick
from tests.broker.stage import BEGIN_US, Publisher, stage
from tests.broker.transactions.staging import settle

DUE_US = BEGIN_US + 10 * SECOND_US


def test_a_message_that_its_topic_refuses_holds_up_no_other(data: Path) -> None:
    with stage(data, message_bytes_max=1024) as on:
        names = {"n" * 100 + str(i): b"" for i in range(100)}
        records = [
            record("a", "t", b"a"),
            record("names", "t", b"names", headers=names),
            record("b", "t", b"b"),
            record("c", "u", b"c"),
        ]
        publish_later(on, records, [DUE_US] * 4)
        settle(on)
        on.runtime.time_us = DUE_US
        tick(on)
        assert arrived(on) == [b"a", b"b"]
        assert arrived(on, "u") == [b"c"]
        assert arrived(on, "dead.scheduled") == [b"names"]
        assert len(on.core.schedule) == 0


def test_messages_that_fit_one_by_one_come_though_they_are_too_much_together(data: Path) -> None:
    with stage(data, message_bytes_max=100) as on:
        headers = {f"a-name-of-some-length-{i}": b"" for i in range(5)}
        records = [record(f"{i}", "t", b"x" * 100, headers=headers) for i in range(100)]
        publish_later(on, records, [DUE_US] * 100)
        settle(on)
        on.runtime.time_us = DUE_US
        tick(on)
        assert arrived(on) == [b"x" * 100] * 100
        assert not arrived(on, "dead.scheduled")


def test_a_broker_in_memory_loses_none_of_many_large_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each step of the broker's own work takes a slice.
    monkeypatch.setattr(slices, "SLICE_US", 0)
    with stage(None) as on:
        for i in range(5):
            records = [record(f"{i}-{j}", "t", b"%d" % (i * 500 + j) * 50) for j in range(500)]
            publish_later(on, records, [DUE_US] * 500)
            for _ in range(3):
                on.core.turns.end()
        settle(on)
        assert len(on.core.schedule) == 2500
        on.runtime.time_us = DUE_US
        tick(on, 60)
        assert len(arrived(on)) == 2500


def test_a_broker_in_memory_has_a_limit_too() -> None:
    with stage(None, options=BrokerOptions(scheduled_bytes_max=MIB)) as on:
        for i in range(110):
            publish_later(on, [record(f"{i}", "t", b"x" * 10_000)], [DUE_US])
            settle(on)
        by = publish_later(on, [record("more", "t", b"x")], [DUE_US])
        settle(on)
        assert [type(fault) for *_, fault in by.refusals] == [LimitError]


def test_a_batch_that_lies_about_its_times_is_refused(data: Path) -> None:
    with stage(data) as on:
        key, value = record("a", "t", b"x")
        number = on.core.open_topic(SCHEDULED_TOPIC, create=True).number
        for time_us in ((1 << 63) - 1, -(1 << 63)):
            data_of = encode_batch([value], keys=[key], event_times_us=[time_us], topic=number)
            head, body = (
                data_of[: CLIENT_PART_AT - CHECKSUMS.size],
                bytearray(data_of[CLIENT_PART_AT:]),
            )
            TIME_RANGE.pack_into(body, CLIENT_PART.size, DUE_US, DUE_US)
            lie = head + CHECKSUMS.pack(0, crc32c(bytes(body))) + body
            by = Publisher()
            on.core.take(lie, 0, by)
            settle(on)
            assert [type(fault) for *_, fault in by.refusals] == [FormatError]
            assert len(on.core.schedule) == 0


@pytest.mark.parametrize("cron", ["1" * 5000 + " * * * *", "* * * * " + "1," * 100_000 + "1"])
def test_a_cron_expression_of_any_length_is_answered(data: Path, cron: str) -> None:
    with stage(data) as on:
        answers: list[object] = []
        wanted = AddSchedule(name="long", topic="t", cron=cron, value=b"x")
        on.core.schedule.add(wanted, answers.append)
        settle(on)
        assert [type(answer) for answer in answers] == [InvalidArgumentError]
