"""`fanlog audit`: follow the log of who did what, check it, and take it along."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fanlog
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.header import read_header
from fanlog.sync import Client
from tests.cli.conftest import PATIENCE_SECONDS, Run, Serving

Serve = Callable[..., Serving]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The data folder of a broker that was stopped, and a head that was kept before that."""
    folder = tmp_path_factory.mktemp("audited")
    serving = Serving(folder, "--redis-port", "-1", "--http-port", "-1", "--data", "kept")
    with fanlog.sync.connect(serving.url) as client:
        for n in range(4):
            client.create_topic(f"topic-{n}")
    assert serving.stop().code == 0
    head = json.loads((folder / "kept" / "audit.json").read_text())
    return folder / "kept", f"{head['seq']}:{head['hash']}"


def wait_for(ask: Run, name: str, **environment: str) -> None:
    """Until the log has what was last done to `name`: it is there when it is synced, a moment after
    the answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ask("audit", "tail", "--no-follow", "--name", name, **environment).out:
        assert time.monotonic() < deadline, f"{name} is not in the log"


def test_changes_are_shown_with_who_made_them_and_from_where(ask: Run, client: Client) -> None:
    client.create_topic("a1.orders", partitions=2)
    wait_for(ask, "a1.orders")
    shown = ask("audit", "tail", "--no-follow", "--name", "a1.*")
    (line,) = shown.out.splitlines()
    assert "ok     topic.create a1.orders  by - from native 127.0.0.1:" in line
    assert line.endswith("(partitions=2)")
    (record,) = ask("audit", "tail", "--no-follow", "--name", "a1.*", "--json").lines
    assert (record["action"], record["name"]) == ("topic.create", "a1.orders")
    nothing = ask("audit", "tail", "--no-follow", "--action", "group.*", "--user", "nobody")
    assert (nothing.code, nothing.out) == (0, "")


def test_the_log_of_a_running_broker_is_whole_and_its_head_can_be_kept(
    ask: Run, client: Client, tmp_path: Path
) -> None:
    client.create_topic("a2")
    wait_for(ask, "a2")
    head = ask("audit", "head").out.strip()
    client.create_topic("a2.more")
    wait_for(ask, "a2.more")
    found = ask("audit", "verify", "--head", head)
    assert found.code == 0
    assert found.out.startswith("The chain is whole: ")
    seq = int(head.split(":")[0])
    (tmp_path / "heads").write_text(f"an older line\n{seq}:{'ab' * 32}\n")
    wrong = ask("audit", "verify", "--head", str(tmp_path / "heads"), "--json")
    assert wrong.code == 1
    assert wrong.json["faults"][0]["seq"] == seq


def test_the_log_is_exported_and_the_export_checked(
    ask: Run, client: Client, tmp_path: Path
) -> None:
    client.create_topic("a3.orders")
    wait_for(ask, "a3.orders")
    file = tmp_path / "audit.jsonl"
    done = ask("audit", "export", str(file))
    head = done.out.split("The head is ")[1].strip()
    assert ask("audit", "verify", "--file", str(file), "--head", head).code == 0
    lines = file.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[-1])["name"] == "a3.orders"
    assert ask("audit", "export", str(file)).code == 4
    assert ask("audit", "export", str(file), "--force").code == 0
    assert ask("audit", "export").out.encode().startswith(lines[0])
    file.write_bytes(b"".join(lines[:-1]))
    cut = ask("audit", "verify", "--file", str(file), "--head", head)
    assert cut.code == 1
    assert "missing at the end" in cut.sentence


def test_an_export_that_finds_no_broker_leaves_no_file(typed: Run, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    assert typed("audit", "export", str(file), "--url", "fanlog://127.0.0.1:1").code == 69
    assert not file.exists()


def test_starts_and_stops_are_in_the_log(stopped: tuple[Path, str], typed: Run) -> None:
    lines = typed("audit", "export", "--data", str(stopped[0])).lines
    assert [line["action"] for line in lines] == [
        "broker.start",
        *["topic.create"] * 4,
        "broker.stop",
    ]
    assert lines[-1]["detail"] == "SIGTERM"


def test_a_data_folder_is_checked_without_a_broker(stopped: tuple[Path, str], typed: Run) -> None:
    folder, head = stopped
    whole = typed("audit", "verify", "--data", str(folder), "--head", head)
    assert (whole.code, whole.out) == (
        0,
        f"The chain is whole: 6 records, 0 to 5. Its head is {head}\n",
    )
    assert typed("audit", "head", "--data", str(folder)).out == f"{head}\n"
    assert typed("audit", "verify", "--data", str(folder.parent)).code == 3


def test_a_record_that_was_changed_in_the_files_is_named(
    stopped: tuple[Path, str], typed: Run, tmp_path: Path
) -> None:
    folder, head = stopped
    copy = shutil.copytree(folder, tmp_path / "copy")
    forge(copy, b"topic-1", b"topic-X")
    found = typed("audit", "verify", "--data", str(copy), "--head", head)
    assert found.code == 1
    assert found.err.startswith("error: Record 2 was changed")


def test_damage_in_the_files_is_named(
    stopped: tuple[Path, str], typed: Run, tmp_path: Path
) -> None:
    folder, head = stopped
    copy = shutil.copytree(folder, tmp_path / "copy")
    (log,) = (copy / "topics").glob("*_fanlog.audit/0/*.log")
    data = bytearray(log.read_bytes())
    data[data.index(b"topic-1")] ^= 1
    log.write_bytes(data)
    found = typed("audit", "verify", "--data", str(copy), "--head", head)
    assert found.code == 1
    assert found.err == "error: Records 2 to 2 are damaged on disk.\n"


def test_damage_at_the_end_of_the_files_is_found_by_the_head_that_the_broker_keeps(
    stopped: tuple[Path, str], typed: Run, tmp_path: Path
) -> None:
    copy = shutil.copytree(stopped[0], tmp_path / "copy")
    (log,) = (copy / "topics").glob("*_fanlog.audit/0/*.log")
    data = bytearray(log.read_bytes())
    data[data.rindex(b'"seq"')] ^= 1
    log.write_bytes(data)
    found = typed("audit", "verify", "--data", str(copy))
    assert found.code == 1
    assert found.err == "error: Records 5 to 5 are missing at the end.\n"


def test_a_head_that_was_kept_elsewhere_goes_before_the_broker_s_own(
    stopped: tuple[Path, str], typed: Run
) -> None:
    folder, head = stopped
    other = f"{head.split(':')[0]}:{'ab' * 32}"
    found = typed("audit", "verify", "--data", str(folder), "--head", other)
    assert (found.code, "the hash that you kept" in found.err) == (1, True)


def test_the_last_records_that_fit_are_shown_however_many_came_after_them(
    ask: Run, client: Client
) -> None:
    for name in ("a4.first", "a4.second", "a4.third"):
        client.create_topic(name)
    for n in range(25):
        client.create_topic(f"a4-later.{n}")
    wait_for(ask, "a4-later.24")
    shown = ask("audit", "tail", "--no-follow", "--name", "a4.*", "--last", "2", "--json")
    assert [record["name"] for record in shown.lines] == ["a4.second", "a4.third"]


def forge(folder: Path, old: bytes, new: bytes) -> None:
    """Changes a record as somebody does who knows the format: with valid checksums."""
    (log,) = (folder / "topics").glob("*_fanlog.audit/0/*.log")
    data = log.read_bytes()
    at = 0
    while True:
        header = read_header(data, at)
        batch = data[at : at + header.length]
        if old in batch:
            break
        at += header.length
    values = [bytes(value or b"") for value in Batch(memoryview(batch), header).values]
    stamped = stamp(
        encode_batch([value.replace(old, new) for value in values]),
        base_offset=header.base_offset,
        append_time_us=header.append_time_us,
        leader_epoch=header.leader_epoch,
        topic=header.topic,
    )
    assert len(stamped) == len(batch)
    log.write_bytes(data[:at] + stamped + data[at + len(batch) :])


def test_after_a_crash_the_chain_goes_on_and_fits_the_head_that_was_kept(
    serve: Serve, run: Run, tmp_path: Path
) -> None:
    head = ""
    for start in range(2):
        serving = serve("--data", "kept")
        with fanlog.sync.connect(serving.url) as client:
            for n in range(3):
                client.create_topic(f"topic-{start}-{n}")
        wait_for(run, f"topic-{start}-2", FANLOG_URL=serving.url)
        flags = ("--head", head) if head else ()
        assert run("audit", "verify", *flags, FANLOG_URL=serving.url).code == 0
        head = run("audit", "head", FANLOG_URL=serving.url).out.strip()
        serving.stop(signal.SIGKILL)
    whole = run("audit", "verify", "--data", "kept", "--head", head)
    assert (whole.code, "8 records, 0 to 7" in whole.out) == (0, True)
