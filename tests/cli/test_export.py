"""`fanlog export` and `fanlog import`: what is written comes back, byte by byte."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import fanlog
from fanlog.cli.exchange import ParquetFile
from fanlog.cli.exit_codes import CommandError, ExitCode
from tests.cli.conftest import Run, Serving

KEYS = [b"alice", b"bob", "é".encode(), b"\xff\x00", None]
VALUES = [b"text", b"", None, b"\x80\x81", b'{"a": 1.10}', b"zeile\nzwei"]
WHEN = dt.datetime(2020, 5, 17, 12, 0, 0, 123456, tzinfo=dt.UTC)


async def fill(url: str, topic: str) -> None:
    async with fanlog.connect(url) as client:
        await client.create_topic(topic, partitions=3)
        for i, value in enumerate(VALUES * 5):
            await client.publish(
                topic,
                value,
                key=KEYS[i % len(KEYS)],
                headers={"trace": b"\xfe", "n": str(i)},
                event_time=WHEN + dt.timedelta(microseconds=i) if i % 2 else None,
                priority=i % 3,
            )


async def rows(url: str, topic: str) -> list[tuple[Any, ...]]:
    """All that an import keeps, in the order of the partitions."""
    async with fanlog.connect(url) as client:
        count = (await client.describe_topic(topic)).records
        found: list[tuple[Any, ...]] = []
        async with client.subscribe(topic, start="earliest") as reader:
            while len(found) < count:
                message = await reader.next(60)
                value = None if message.is_tombstone else message.value
                when = message.event_time
                told = (message.key, value, dict(message.headers), when, message.priority)
                found.append((message.partition, message.offset, *told))
        return sorted(found, key=lambda row: row[:2])


def kept(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without the offsets, which are new."""
    return [(row[0], *row[2:]) for row in found]


@pytest.mark.parametrize("name", ["orders.jsonl", "orders.parquet"])
def test_everything_comes_back(run: Run, broker: Serving, tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    topic = f"export-{name.replace('.', '-')}"
    url = {"FANLOG_URL": broker.url}
    asyncio.run(fill(broker.url, topic))
    exported = run("export", topic, name, **url)
    assert exported.code == 0, exported.err
    assert not list(tmp_path.glob("*.tmp"))
    refused = run("import", f"{topic}-narrow", name, **url)
    assert refused.code == 65
    assert "--partitions 3" in refused.sentence
    assert run("topic", "create", f"{topic}-2", "--partitions", "3", **url).code == 0
    first = run("import", f"{topic}-2", name, "--once", "n1", "--json", **url)
    assert first.json == {"topic": f"{topic}-2", "stored": 30, "known": 0}, first.err
    again = run("import", f"{topic}-2", name, "--once", "n1", "--json", **url)
    assert again.json == {"topic": f"{topic}-2", "stored": 0, "known": 30}
    before, after = (
        asyncio.run(rows(broker.url, topic)),
        asyncio.run(rows(broker.url, f"{topic}-2")),
    )
    assert kept(before) == kept(after)


def test_lines_go_through_pipes_and_may_be_written_by_hand(run: Run, broker: Serving) -> None:
    url = {"FANLOG_URL": broker.url}
    lines = (
        '{"value": "a"}\n\n{"key": "k", "value": {"x": [1, 2.50]}}\n{"key": "k", "value": null}\n'
    )
    assert run("import", "by-hand", stdin=lines, **url).code == 0
    out = run("export", "by-hand", "--json-values", **url)
    assert [(line["key"], line["value"]) for line in out.lines] == [
        (None, "a"),
        ("k", {"x": [1, 2.5]}),
        ("k", None),
    ]
    assert '{"x": [1, 2.50]}' in out.out
    again = run("import", "by-hand-2", "--spread", stdin=out.out, **url)
    assert again.code == 0, again.err
    assert [line["value"] for line in run("export", "by-hand-2", **url).lines] == [
        "a",
        '{"x": [1, 2.50]}',
        None,
    ]


def test_what_is_no_message_is_named(run: Run, broker: Serving, tmp_path: Path) -> None:
    url = {"FANLOG_URL": broker.url}
    for wrong in ("no json", '{"value": 1, "key": 2}', '{"value": "?", "encoding": "base64"}'):
        ended = run("import", "wrong", stdin='{"value": "fine"}\n' + wrong + "\n", **url)
        assert ended.code == 65
        assert ended.sentence.startswith("Line 2 is not a message")
    assert run("import", "wrong", "missing.jsonl", **url).code == 3
    assert run("export", "nowhere", **url).code == 3
    (tmp_path / "x.parquet").write_text(json.dumps({}))
    assert run("import", "wrong", "x.parquet", **url).code in (1, 65)
    assert run("export", "by-hand", "--format", "xml", **url).code == 2


def test_a_line_that_is_nested_too_deep_is_named(run: Run, broker: Serving, tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"value": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    ended = run("import", "deep", "deep.jsonl", FANLOG_URL=broker.url)
    assert (ended.code, "Line 1 is not a message" in ended.sentence) == (65, True)


def test_a_hostile_parquet_file_is_no_fault_of_ours(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = importlib.import_module("pyarrow.parquet")
    path = tmp_path / "x.parquet"

    def refused(data: bytes | None = None, **columns: Any) -> str:
        if data is None:
            pq.write_table(pa.table({"value": [b"a"], **columns}), path)
        else:
            path.write_bytes(data)
        with pytest.raises(CommandError) as fault:
            list(ParquetFile(path).read())
        assert fault.value.exit_code == ExitCode.BAD_DATA
        return str(fault.value)

    for name, column in {
        "value": [1.5],
        "key": [5],
        "headers": ["x"],
        "timestamp": ["x"],
        "partition": [1.5],
        "priority": ["z"],
    }.items():
        assert f"`{name}`" in refused(**{name: column})
    pq.write_table(pa.table({"value": [b"abc" * 1000] * 5000}), path)
    damaged = bytearray(path.read_bytes())
    damaged[100:160] = bytes(b ^ 255 for b in damaged[100:160])
    assert "can't be read to its end" in refused(bytes(damaged))
    assert "not a Parquet file" in refused(b"PAR1" + b"\xff" * 50 + b"PAR1")
