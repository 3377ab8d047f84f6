"""`create_topic(exist_ok=True)`: a program gets the settings that it asked for, or is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanlog import errors
from fanlog.config import Config
from fanlog.model import TopicSettings
from tests.client.ways import WAYS, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Path) -> Way:
    return Way(request.param, data)


async def test_a_topic_with_other_settings_is_an_error_that_lists_them(way: Way) -> None:
    async with way.open() as client:
        await client.publish("orders", b"made with the defaults")
        with pytest.raises(errors.TopicDiffersError) as caught:
            await client.create_topic("orders", partitions=4, durability="fsync", exist_ok=True)
        says = str(caught.value)
        assert "(partitions: is 1, asked for 4; durability: is os, asked for fsync)" in says
        assert "fanlog topic alter orders, then fanlog topic grow orders 4" in says
        assert 'exist_ok="any"' in says
        assert (await client.describe_topic("orders")).settings == TopicSettings()


async def test_the_same_settings_are_no_error(way: Way) -> None:
    async with way.open() as client:
        for _ in range(2):
            info = await client.create_topic(
                "orders", partitions=4, durability="fsync", exist_ok=True
            )
            assert (info.settings.partitions, info.settings.durability) == (4, "fsync")


async def test_a_setting_that_is_not_given_may_be_any(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=3, durability="fsync", retention_bytes=99)
        assert (await client.create_topic("t", exist_ok=True)).settings.partitions == 3
        assert await client.create_topic("t", durability="fsync", exist_ok=True)
        with pytest.raises(errors.TopicDiffersError, match=r"\(durability: is fsync, asked for os"):
            await client.create_topic("t", durability="os", exist_ok=True)


async def test_a_default_in_topic_settings_may_be_any(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=3, durability="fsync")
        settings = TopicSettings(durability="fsync")
        assert await client.create_topic("t", settings, exist_ok=True)
        with pytest.raises(errors.TopicDiffersError, match=r"\(partitions: is 3, asked for 1\)"):
            await client.create_topic("t", settings, partitions=1, exist_ok=True)
        with pytest.raises(errors.TopicDiffersError, match="partitions: is 3, asked for 2"):
            await client.create_topic("t", TopicSettings(partitions=2), exist_ok=True)


async def test_any_accepts_what_is_there(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=3)
        info = await client.create_topic("t", partitions=8, durability="fsync", exist_ok="any")
        assert (info.settings.partitions, info.settings.durability) == (3, "os")
        made = await client.create_topic("new", partitions=2, exist_ok="any")
        assert made.settings.partitions == 2
        with pytest.raises(errors.InvalidArgumentError, match="True, False or 'any'"):
            await client.create_topic("t", exist_ok="all")


async def test_a_compacted_topic_is_made_again_without_an_error(way: Way) -> None:
    async with way.open() as client:
        for _ in range(2):
            info = await client.create_topic("prices", cleanup="compact", exist_ok=True)
            assert (info.settings.cleanup, info.settings.retention_seconds) == ("compact", 0)
        with pytest.raises(errors.TopicDiffersError, match="cleanup: is compact, asked for delete"):
            await client.create_topic("prices", cleanup="delete", exist_ok=True)


async def test_what_can_not_be_had_says_so(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=3)
        with pytest.raises(
            errors.TopicDiffersError, match=r"partitions can't change.*another name"
        ):
            await client.create_topic("t", partitions=2, exist_ok=True)


async def test_settings_that_no_topic_can_have_are_that_error_still(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t")
        with pytest.raises(errors.InvalidArgumentError, match="partitions can't be 0"):
            await client.create_topic("t", partitions=0, exist_ok=True)
        with pytest.raises(errors.InvalidArgumentError, match="no topic setting 'colour'"):
            await client.create_topic("t", colour="red", exist_ok="any")


async def test_the_brokers_own_defaults_do_not_conflict(way: Way) -> None:
    fsync = Config(topic=TopicSettings(durability="fsync", partitions=2))
    async with way.open(fsync) as client:
        await client.create_topic("t", retention_bytes=5)
        assert await client.create_topic("t", retention_bytes=5, exist_ok=True)
        assert await client.create_topic("t", partitions=2, exist_ok=True)


async def test_of_two_programs_that_disagree_one_is_told(way: Way) -> None:
    async with way.open() as client:
        for turn in range(10):
            got = await asyncio.gather(
                *(
                    client.create_topic(f"t{turn}", partitions=count, exist_ok=True)
                    for count in (2, 3)
                ),
                return_exceptions=True,
            )
            (error,) = [one for one in got if isinstance(one, Exception)]
            assert isinstance(error, errors.TopicDiffersError)
