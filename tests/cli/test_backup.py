"""`fanlog backup`, `fanlog restore` and `fanlog verify` as an operator runs them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Run, Serving

LINES = "".join(f"line {i}\n" for i in range(2000))


def test_a_backup_is_taken_listed_checked_and_restored(
    run: Run, serve: Callable[..., Serving], tmp_path: Path
) -> None:
    serving = serve("--data", "data")
    url = {"FANLOG_URL": serving.url}
    assert run("publish", "orders", stdin=LINES, **url).code == 0
    first = run("backup", "saved", "--json", **url)
    assert first.code == 0, first.err
    assert (first.json["point"], first.json["topics"]) == (1, 1)
    assert run("publish", "orders", stdin="one more\n", **url).code == 0
    second = run("backup", "saved", **url)
    assert second.code == 0, second.err
    assert second.out.startswith("Point 2 is in saved: 1 topics")
    assert run("backup", "out.tar.gz", **url).code == 0
    assert [row["point"] for row in run("backup", "saved", "--list", "--json").json] == [1, 2]
    # However the broker ends: the backup is whole.
    serving.stop(signal.SIGKILL)
    for backup in ("saved", "out.tar.gz"):
        assert run("verify", backup).code == 0
    assert run("restore", "saved", "again").code == 0
    refused = run("restore", "saved", "again")
    assert refused.code == 1
    assert "is not empty" in refused.sentence
    assert run("restore", "saved", "first", "--point", "1").code == 0
    assert run("restore", "out.tar.gz", "from-tar").code == 0
    assert run("restore", "saved", "other", "--point", "7").code == 2
    for folder, count in (("first", 2000), ("from-tar", 2001)):
        assert run("verify", folder).code == 0
        assert records(run, serve, folder) == count
    check_damaged(run, tmp_path / "saved")


def check_damaged(run: Run, saved: Path) -> None:
    (segment,) = (saved / "files").rglob("*-orders/0/*.log@1")
    data = bytearray(segment.read_bytes())
    data[100] ^= 4
    segment.write_bytes(data)
    found = run("verify", "saved", "--json")
    assert found.code == 1
    assert [f["file"] for f in found.json["findings"]] == [str(segment.relative_to(saved))]
    assert "damaged in the backup" in run("restore", "saved", "damaged").sentence


def records(run: Run, serve: Callable[..., Serving], folder: str) -> int:
    serving = serve("--data", folder)
    described = run("topic", "describe", "orders", "--json", FANLOG_URL=serving.url).json
    assert serving.stop().code == 0
    return sum(part["visible_end"] for part in described["partitions"])


def test_what_can_not_be_backed_up_or_restored_says_why(
    run: Run, serve: Callable[..., Serving], tmp_path: Path
) -> None:
    serving = serve("--memory")
    url = {"FANLOG_URL": serving.url}
    assert "in memory" in run("backup", "saved", **url).sentence
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert "not empty" in run("backup", "full", **url).sentence
    assert "is a file" in run("backup", "full/file", **url).sentence
    assert "--keep needs a folder" in run("backup", "a.tar", "--keep", "2", **url).sentence
    assert not list(tmp_path.glob("a.tar*"))
    assert "not a backup" in run("restore", "full", "data").sentence
    assert "no backup" in run("restore", "missing", "data").sentence
    assert (tmp_path / "full" / "file").read_text() == "mine"
