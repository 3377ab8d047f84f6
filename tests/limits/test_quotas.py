"""Quotas on topics and stored bytes, of owners and prefixes."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

import fanlog
from fanlog.broker.messages.restrictions import Unrestricted
from fanlog.config_limits import LimitOptions
from fanlog.errors import ConfigError, FanlogError, QuotaExceededError, RateLimitedError
from fanlog.format.batch import encode_batch
from fanlog.identity import Allowance
from fanlog.security.quotas import QuotaTable, Share
from tests.limits.limited import Limited, limited


def test_a_share_takes_off_what_is_gone_and_ends_with_its_topic() -> None:
    table = QuotaTable(LimitOptions(prefixes="a.:topics=2:stored_bytes=100"))
    (quota,) = table.of("a.b", "")
    share = Share((quota,), 40)
    share.grew(60)
    assert (quota.topics, quota.stored_bytes) == (1, 100)
    fault = share.maybe_fault()
    assert fault is not None
    assert "The prefix 'a.' stores 100 bytes, and its quota is 100" in str(fault)
    share.recount(30)
    assert share.maybe_fault() is None
    share.end()
    assert (quota.topics, quota.stored_bytes) == (0, 0)


def test_an_owner_has_the_quota_of_its_account_or_everybodys() -> None:
    table = QuotaTable(LimitOptions(topics_per_user=5))
    table.allowance_of = {"ann": Allowance(topics=1)}.get
    (ann,), (bob,) = table.of("t", "ann"), table.of("t", "bob")
    assert (ann.topics_max, bob.topics_max) == (1, 5)
    shares = [Share((ann,), 0), Share((bob,), 0)]
    table.allowance_of = {"bob": Allowance(topics=9)}.get
    table.renew()
    assert (ann.topics_max, bob.topics_max) == (5, 9)
    for share in shares:
        share.end()
    table.renew()
    assert table.of("t", "ann")[0] is not ann


def test_who_has_no_maximum_bounds_nothing() -> None:
    table = QuotaTable(LimitOptions())
    share = Share(table.of("t", "ann"), 40)
    assert not table.bounded
    table.allowance_of = {"ann": Allowance(stored_bytes=30)}.get
    table.renew()
    assert table.bounded
    assert share.maybe_fault() is not None
    table.allowance_of = {"ann": Allowance()}.get
    table.renew()
    assert not table.bounded
    assert QuotaTable(LimitOptions(prefixes="a.:topics=2")).bounded


@pytest.mark.parametrize("text", ["a", ":topics=3", "a.:apples=3", "a.:topics=x", "a.:topics"])
def test_a_wrong_quota_of_a_prefix_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"limits\.prefixes: "):
        QuotaTable(LimitOptions(prefixes=text))


def stored(broker: Limited, name: str) -> int:
    topic = broker.node.core.catalog.get(name)
    return sum(partition.log.bytes for partition in topic.partitions)


async def test_a_prefix_has_so_many_topics_on_every_listener(tmp_path: Path) -> None:
    async with (
        limited(tmp_path / "data", prefixes="a.:topics=1") as broker,
        await fanlog.connect(broker.url) as client,
        aiohttp.ClientSession() as web,
    ):
        await client.publish("a.one", b"x")
        for attempt in (client.create_topic("a.two"), client.publish("a.three", b"x")):
            with pytest.raises(QuotaExceededError, match="has 1 topics, and its quota is 1"):
                await attempt
        answer = await web.post(f"{broker.http}/v1/topics", json={"name": "a.two"})
        assert answer.status == 507
        assert (await answer.json())["code"] == "quota_exceeded"
        await client.publish("b.two", b"x")
        await client.delete_topic("a.one")
        await client.create_topic("a.two")


async def test_stored_bytes_are_counted_over_restarts_and_given_back_with_a_topic(
    tmp_path: Path,
) -> None:
    quota = "a.:stored_bytes=5000"
    first = limited(tmp_path / "data", prefixes=quota)
    async with first as broker, await fanlog.connect(broker.url) as client:
        await client.publish("a.one", b"x" * 3000)
        await client.publish("a.two", b"x" * 3000)
        with pytest.raises(QuotaExceededError, match="its quota is 5000"):
            await client.publish("a.one", b"y")
        await client.publish("b", b"y")
    second = limited(tmp_path / "data", prefixes=quota)
    async with second as broker, await fanlog.connect(broker.url) as client:
        with pytest.raises(QuotaExceededError):
            await client.publish("a.one", b"y")
        with pytest.raises(QuotaExceededError):
            await client.create_topic("a.three")
        await client.delete_topic("a.two")
        await client.publish("a.one", b"y")
        await client.publish("a.one", b"x" * 3000)
        with pytest.raises(QuotaExceededError):
            await client.publish("a.one", b"y")


async def test_a_truncation_gives_back_the_log_files_that_it_deletes(tmp_path: Path) -> None:
    async with (
        limited(tmp_path / "data", prefixes="a.:stored_bytes=150000") as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.create_topic("a.t", segment_bytes=64 << 10)
        for _ in range(3):
            await client.publish("a.t", b"x" * 60_000)
        with pytest.raises(QuotaExceededError):
            await client.publish("a.t", b"y")
        await client.delete_records("a.t", {0: 2})
        assert (await client.publish("a.t", b"z")).offset == 3


async def test_what_retention_deletes_is_taken_off_by_housekeeping(tmp_path: Path) -> None:
    async with (
        limited(tmp_path / "data", prefixes="a.:stored_bytes=100000") as broker,
        await fanlog.connect(broker.url) as client,
    ):
        await client.create_topic("a.t", segment_bytes=64 << 10, retention_bytes=1)
        for _ in range(4):
            await client.publish("a.t", b"x" * 60_000)
            broker.node.core.housekeeping()
        assert stored(broker, "a.t") < 200_000
        await client.publish("a.t", b"y")


class Publisher(Unrestricted):
    """An origin that keeps what it is told. `limited` is what a connection is refused with."""

    def __init__(self) -> None:
        self.limited: RateLimitedError | None = None
        self.acks: list[bytes] = []
        self.refusals: list[FanlogError] = []

    def acknowledge(self, entries: list[bytes]) -> None:
        self.acks += entries

    def refuse(
        self,
        number: int,
        partition: int,
        first_sequence: int,
        expected_sequence: int,
        error: FanlogError,
    ) -> None:
        self.refusals.append(error)


@pytest.mark.parametrize("why", ["quota", "rate"])
async def test_a_repeat_is_acknowledged_although_its_publisher_may_store_no_more(
    tmp_path: Path, why: str
) -> None:
    prefixes = "a.:stored_bytes=1000" if why == "quota" else "a.:topics=9"
    async with limited(tmp_path / "data", prefixes=prefixes) as broker:
        core, origin = broker.node.core, Publisher()
        number = core.open_topic("a.t", create=True).number
        first = encode_batch([b"x" * 2000], topic=number, producer_id=7, first_sequence=0)
        second = encode_batch([b"y"], topic=number, producer_id=7, first_sequence=1)
        core.take(first, 0, origin)
        core.turns.end()
        origin.limited = RateLimitedError("too fast") if why == "rate" else None
        core.take(first + second, 0, origin)
        core.turns.end()
        assert len(origin.acks) == 2
        (refusal,) = origin.refusals
        assert isinstance(refusal, QuotaExceededError if why == "quota" else RateLimitedError)
