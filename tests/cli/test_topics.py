"""`fanlog topic`: create, list, describe and delete."""

from __future__ import annotations

import pytest

from fanlog.sync import Client
from tests.cli.conftest import Run


def test_a_topic_is_created_with_its_settings_listed_described_and_deleted(ask: Run) -> None:
    created = ask(
        *("topic", "create", "made.one", "--partitions", "3", "--durability", "fsync"),
        *("--retention", "2d", "--retention-bytes", "10GB", "--segment-bytes", "1MiB"),
        *("--compression", "zstd", "--message-bytes-max", "2MB", "--tail-bytes", "64KiB", "--json"),
    )
    assert created.code == 0, created.err
    assert created.json["settings"] == {
        "partitions": 3,
        "durability": "fsync",
        "retention_seconds": 172_800,
        "retention_bytes": 10_000_000_000,
        "segment_bytes": 1 << 20,
        "compression": "zstd",
        "message_bytes_max": 2_000_000,
        "tail_bytes": 64 * 1024,
    }
    assert ask("topic", "describe", "made.one", "--json").json == created.json
    listed = ask("topic", "list", "made.>", "--json").json
    assert [topic["name"] for topic in listed] == ["made.one"]
    assert ask("topic", "delete", "made.one", "--yes").out == "Topic made.one is deleted.\n"
    assert ask("topic", "list", "made.>", "--json").json == []


def test_a_topic_that_is_there_is_an_error_unless_that_is_fine(ask: Run, client: Client) -> None:
    client.create_topic("twice")
    again = ask("topic", "create", "twice")
    assert again.code == 4
    assert "exists already" in again.sentence
    assert ask("topic", "create", "twice", "--if-not-exists").code == 0


def test_a_topic_that_is_not_there_is_an_error_of_its_own(ask: Run) -> None:
    ended = ask("topic", "describe", "nowhere")
    assert ended.code == 3
    assert "There is no topic 'nowhere'" in ended.sentence


def test_deleting_without_a_terminal_wants_a_yes(ask: Run, client: Client) -> None:
    client.create_topic("dear")
    ended = ask("topic", "delete", "dear")
    assert ended.code == 2
    assert "give --yes" in ended.sentence
    assert client.describe_topic("dear").name == "dear"


def test_tables_in_a_pipe_have_no_colours_and_a_line_a_topic(ask: Run, client: Client) -> None:
    name = "long." + "x" * 150
    client.create_topic(name)
    ended = ask("topic", "list", "long.>")
    header, row = ended.out.splitlines()
    assert header.split() == ["TOPIC", "PARTITIONS", "DURABILITY", "RECORDS", "BYTES", "READERS"]
    assert row.split()[:3] == [name, "1", "os"]
    assert "\x1b" not in ended.out


def test_a_description_shows_partitions_settings_and_slow_readers(ask: Run, client: Client) -> None:
    client.publish_many("shown", [b"x"] * 7)
    told = ask("topic", "describe", "shown").out
    assert "shown  7 records" in told
    assert "PARTITION" in told
    assert "segment_bytes      128MiB" in told
    assert "Slow readers since the start: 0 catch ups" in told


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--partitions", "0", "a number from 1 to 4096"),
        ("--durability", "disk", "memory, os or fsync"),
        ("--segment-bytes", "12XB", "a size from 64KiB to 1GiB"),
        ("--retention", "soon", "a duration of 0s or more"),
    ],
)
def test_a_wrong_setting_is_answered_with_what_is_allowed(
    typed: Run, flag: str, value: str, allowed: str
) -> None:
    ended = typed("topic", "create", "t", flag, value)
    assert (ended.code, ended.sentence) == (2, f"{flag} is {value}, but must be {allowed}.")
