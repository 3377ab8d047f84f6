"""Spark's driver and tasks log in, and no secret is among their options."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import fanlog
from fanlog.errors import ForbiddenError, InvalidArgumentError, UnauthenticatedError
from fanlog.identity import Rules
from fanlog.spark import sink
from fanlog.spark.filters import FilterBounds
from fanlog.spark.options import read_options, write_options
from fanlog.spark.planning import Planner
from fanlog.spark.pull import read_range
from fanlog.spark.rows import SOURCE_SCHEMA, arrow_schema
from tests.listeners.test_login import guarded

SCHEMA = arrow_schema(SOURCE_SCHEMA)


def read(url: str, **options: str) -> list[bytes]:
    given = read_options({"url": url, "topics": "t", **options})
    planner = Planner(given)
    try:
        ranges = planner.batch_ranges(FilterBounds())
    finally:
        planner.close()
    return [
        value
        for some in ranges
        for rows in read_range(given, some, SCHEMA)
        for value in rows.column("value").to_pylist()
    ]


async def test_driver_and_tasks_log_in_with_a_file_or_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FANLOG_URL", "FANLOG_KEY", "FANLOG_KEY_FILE", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "key"
    async with guarded() as served:
        key = served.add_key()
        file.write_text(key)
        async with fanlog.connect(served.url, key=key) as client:
            await client.publish("t", b"one")
        assert await asyncio.to_thread(read, served.url, keyFile=str(file)) == [b"one"]
        with pytest.raises(UnauthenticatedError):
            await asyncio.to_thread(read, served.url)
        monkeypatch.setenv("FANLOG_KEY_FILE", str(file))
        assert await asyncio.to_thread(read, served.url) == [b"one"]
        rows = pa.record_batch({"value": pa.array([b"two"])})

        def stage_and_commit() -> None:
            given = write_options({"url": served.url, "topic": "t"}, streaming=False)
            assert key not in str(given)
            assert key.encode() not in pickle.dumps(given)
            staged = sink._stage(given, "id", iter([rows]))
            sink._commit(given, "id", [staged])

        # It may publish under the id, which is named like a topic of its own.
        await asyncio.to_thread(stage_and_commit)
        assert await asyncio.to_thread(read, served.url) == [b"one", b"two"]
        served.change("shop", rules=Rules(publish=("t",), describe=("t",)))
        with pytest.raises(ForbiddenError):
            await asyncio.to_thread(read, served.url)


@pytest.mark.parametrize("option", ["key", "password", "token", "Key"])
def test_a_secret_as_an_option_is_refused_and_not_shown(option: str) -> None:
    with pytest.raises(InvalidArgumentError, match="keyFile") as fault:
        read_options({"topics": "t", option: "fl_secret"})
    assert "fl_secret" not in str(fault.value)
    with pytest.raises(InvalidArgumentError, match="FANLOG_KEY") as fault:
        read_options({"topics": "t", "url": "fanlog://:fl_secret@here"})
    assert "fl_secret" not in str(fault.value)
