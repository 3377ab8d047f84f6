"""Where to begin, as Python and the command line write it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from fanlog import errors
from fanlog.cli.tail import parse_start
from fanlog.client.arguments import as_start
from fanlog.model import Start
from tests.client.ways import PATIENCE_SECONDS, WAYS, Way, take

NOON = dt.datetime(2025, 1, 31, 12, tzinfo=dt.UTC)
SECOND_US = 1_000_000


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, data: Path) -> Way:
    return Way(request.param, data)


def at(moment: dt.datetime) -> Start:
    return Start("time", int(moment.timestamp()) * SECOND_US)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        (None, Start("latest")),
        ("latest", Start("latest")),
        ("earliest", Start("earliest")),
        (0, Start("offset", 0)),
        ("42", Start("offset", 42)),
        (Start("offset", 7), Start("offset", 7)),
        ("10m", at(NOON - dt.timedelta(minutes=10))),
        ("1.5h", at(NOON - dt.timedelta(minutes=90))),
        ("2w", at(NOON - dt.timedelta(days=14))),
        (" 30s ", at(NOON - dt.timedelta(seconds=30))),
        (dt.timedelta(minutes=10), at(NOON - dt.timedelta(minutes=10))),
        (dt.timedelta(), at(NOON)),
        (NOON, at(NOON)),
        (NOON.astimezone(dt.timezone(dt.timedelta(hours=5))), at(NOON)),
        ("2025-01-31T12:00Z", at(NOON)),
        ("2025-01-31T13:00+01:00", at(NOON)),
        # Without a zone it is local time, as a text and as a datetime.
        ("2025-01-31T12:00", at(dt.datetime(2025, 1, 31, 12).astimezone())),
        (dt.datetime(2025, 1, 31, 12), at(dt.datetime(2025, 1, 31, 12).astimezone())),
        ("2025-01-31", at(dt.datetime(2025, 1, 31).astimezone())),
    ],
)
def test_a_start_is_read(given: Any, start: Start) -> None:
    assert as_start(given, now=NOON) == start


@pytest.mark.parametrize(
    "given",
    [
        *("", "soon", "-1", "1y", "99999999999w", "10 m 5 s", "2025-13-01", "²"),
        *(True, 1.5, b"earliest", [], dt.timedelta(minutes=-1), dt.timedelta.max),
        dt.date(2025, 1, 31),
    ],
)
def test_what_is_no_start_says_what_is(given: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"start is .*10m"):
        as_start(given, now=NOON)


@pytest.mark.parametrize("given", [-1, 1 << 63, str(1 << 63)])
def test_an_offset_has_its_bounds(given: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="0 or more"):
        as_start(given, now=NOON)


@pytest.mark.parametrize("text", ["earliest", "latest", "7", "2025-01-31T12:00", "2025-01-31"])
def test_the_command_line_and_python_read_a_start_alike(text: str) -> None:
    assert parse_start(text) == as_start(text)


def test_the_command_line_names_its_flag() -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"^--before is 'soon', but must be"):
        parse_start("soon", "--before")


# All that takes a start

RECENT: list[Any] = [
    "10m",
    dt.timedelta(minutes=10),
    dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10),
    (dt.datetime.now() - dt.timedelta(minutes=10)).isoformat(),
]
KINDS = ["age", "timedelta", "datetime", "text"]


@pytest.mark.parametrize("recent", RECENT, ids=KINDS)
async def test_a_time_is_taken_wherever_a_start_is(way: Way, recent: Any) -> None:
    async with way.open() as client:
        await client.publish_many("t", [b"1", b"2"])
        assert await client.find_offsets("t", recent) == {0: 0}
        assert await client.find_offsets("t", dt.timedelta(0)) == {0: 2}
        async with client.subscribe("t", start=recent) as reader:
            assert [m.value for m in await take(reader, 2)] == [b"1", b"2"]
        async with client.consume("t", group="g", reset=recent) as member:
            assert [m.value for m in await take(member, 2)] == [b"1", b"2"]
            await member.commit()
            await member.seek(recent)
            assert (await member.next(PATIENCE_SECONDS)).value == b"1"
        (moved,) = await client.groups.reset("g", recent)
        assert moved.after == 0
        assert await client.delete_records("t", recent) == {0: 0}


async def test_a_group_begins_at_a_time_once(way: Way) -> None:
    async with way.open() as client:
        await client.create_topic("t", partitions=2)
        old = [await client.publish("t", b"old", partition=index) for index in range(2)]
        after = dt.datetime.fromtimestamp(max(r.timestamp_us for r in old) / 1e6 + 1e-6, dt.UTC)
        for index in range(2):
            await client.publish("t", b"new", partition=index)
        async with client.consume("t", group="g", reset=after) as member:
            assert {m.value for m in await take(member, 2)} == {b"new"}
            await member.commit()
        # It has its positions now, and a topic that appears later is read from its begin.
        async with client.consume("t", group="g", reset="1d") as member:
            await client.publish("t", b"newest", partition=0)
            assert (await member.next(PATIENCE_SECONDS)).value == b"newest"
        async with client.consume("later", group="h", reset=dt.timedelta(0)) as member:
            await client.publish("later", b"first")
            assert (await member.next(PATIENCE_SECONDS)).value == b"first"


async def test_a_group_does_not_begin_at_an_offset(way: Way) -> None:
    async with way.open() as client:
        for wrong in (5, "5", "nonsense"):
            with pytest.raises(errors.InvalidArgumentError, match="10m"):
                await client.consume("t", group="g", reset=wrong).start()
