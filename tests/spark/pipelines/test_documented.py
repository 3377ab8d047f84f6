"""The commands of docs/spark.md, one after the other, as a reader types them; and what the page
says that they leave behind."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fanlog
from tests.cli.conftest import environment
from tests.scenarios.broker_process import BrokerProcess
from tests.spark.sessions import need_java

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
# Nine pipelines are run, each with a Spark of its own.
TEST_SECONDS_MAX = 3000


def documented_commands() -> list[list[str]]:
    """What the page tells its reader to type, up to the end of the section on pipelines."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Columns")[0]
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[1:] for words in commands if words[0] == "fanlog" and words[1] != "serve"]


def documented_records() -> dict[str, int]:
    """The topics and their records, as the page shows them."""
    rows = re.findall(r"^(\S+) +\d+  os +(?:<=)?([\d,]+) ", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: int(records.replace(",", "")) for name, records in rows}


def documented_windows() -> list[dict[str, object]]:
    lines = re.findall(r'^\{"topic":"orders","start".*\}$', PAGE.read_text("utf-8"), re.MULTILINE)
    return [json.loads(line) for line in lines]


@pytest.mark.long
@pytest.mark.timeout(TEST_SECONDS_MAX)
def test_the_documented_commands_leave_the_documented_rows(tmp_path: Path) -> None:
    need_java()
    commands = documented_commands()
    assert {words[2] for words in commands if words[:2] == ["pipeline", "run"]} >= {
        "archive", "clean", "join", "replay", "rollup", "drops", "./my-clean",
    }  # fmt: skip
    with BrokerProcess(tmp_path / "data") as broker:
        for words in commands:
            done = subprocess.run(
                [sys.executable, "-m", "fanlog", *words],
                cwd=tmp_path,
                env=environment(FANLOG_URL=broker.url),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (words, done.stderr)
        with fanlog.sync.connect(broker.url) as client:
            ends = {
                info.name: sum(p.visible_end - p.start_offset for p in info.partitions)
                for info in client.topics()
            }
            with client.subscribe("rollup", start="earliest") as rollup:
                windows = [rollup.next(timeout_seconds=30) for _ in range(ends["rollup"])]
    records = documented_records()
    # The last windows wait for newer records: how many do depends on when a minute began.
    assert abs(ends.pop("rollup") - records.pop("rollup")) <= 2
    # my-clean makes dead letters of the same orders again.
    dead = "dead.orders.clean"
    assert (ends.pop(dead), ends.pop("orders.mine")) == (
        2 * records.pop(dead),
        ends["orders.clean"],
    )
    assert {name: ends[name] for name in records} == records
    got = [json.loads(message.text) for message in windows]
    assert [window["start"] for window in got] == sorted(window["start"] for window in got)
    assert all(window["records"] > 0 for window in got)
    assert all("E" not in message.text.partition('"records"')[2] for message in windows)
    shown = documented_windows()
    for found, window in zip(got, shown, strict=False):
        for name in ("topic", "records", "bytes", "records_per_second", "bytes_per_second"):
            assert found[name] == window[name]
    assert list(tmp_path.glob("lake/topic=orders/date=*/*.parquet"))
    assert (tmp_path / "report" / "report.html").is_file()
