"""`fanlog verify` as an operator runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Run, Serving


def test_it_names_the_damaged_file_and_its_offsets(
    run: Run, serve: Callable[..., Serving], tmp_path: Path
) -> None:
    serving = serve("--data", "data")
    assert run("publish", "orders", stdin="a\nb\nc\n", FANLOG_URL=serving.url).code == 0
    running = run("verify", "data")
    assert running.code == 1
    assert "A broker runs in" in running.sentence
    assert serving.stop().code == 0

    well = run("verify", "data")
    assert well.code == 0, well.out
    assert "files are whole" in well.out

    segment = next((tmp_path / "data/topics").glob("*-orders/0/*.log"))
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    damaged = run("verify", "data", "--json")
    assert damaged.code == 1
    found = damaged.json["findings"]
    assert {finding["file"] for finding in found} == {str(segment.relative_to(tmp_path / "data"))}
    assert any(f["meaning"] == "lost" and "offsets 0 to" in f["sentence"] for f in found)
    assert segment.name in run("verify", "data").out


def test_a_folder_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ended = run("verify", "other")
    assert ended.code == 1
    assert "not a Fanlog data folder" in ended.sentence
    assert "not a Fanlog data folder" in run("verify", "missing").sentence
