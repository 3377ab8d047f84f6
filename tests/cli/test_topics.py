"""`fanlog topic`: create, list, describe, grow, truncate, compact and delete."""

from __future__ import annotations

import pytest

from fanlog.sync import Client
from tests.cli.conftest import Run


def test_a_topic_is_created_with_its_settings_listed_described_and_deleted(ask: Run) -> None:
    created = ask(
        *("topic", "create", "with.settings", "--partitions", "3", "--durability", "fsync"),
        *("--retention", "2d", "--retention-bytes", "10GB", "--segment-bytes", "1MiB"),
        *("--compression", "zstd", "--message-bytes-max", "2MB", "--tail-bytes", "64KiB", "--json"),
        *("--cleanup", "compact", "--tombstones", "2h", "--compact-after-bytes", "4MiB"),
        *("--expire", "1h", "--messages-per-second-max", "5000"),
        *("--bytes-per-second-max", "1000000", "--owner", "ann"),
    )
    assert created.code == 0, created.err
    assert created.json["settings"] == {
        "partitions": 3,
        "durability": "fsync",
        "retention_seconds": 172_800,
        "retention_bytes": 10_000_000_000,
        "expire_seconds": 3600,
        "segment_bytes": 1 << 20,
        "compression": "zstd",
        "message_bytes_max": 2_000_000,
        "tail_bytes": 64 * 1024,
        "cleanup": "compact",
        "tombstone_seconds": 7200,
        "compact_after_bytes": 4 << 20,
        "messages_per_second_max": 5000,
        "bytes_per_second_max": 1_000_000,
        "owner": "ann",
        "role": "",
    }
    assert ask("topic", "describe", "with.settings", "--json").json == created.json
    listed = ask("topic", "list", "with.>", "--json").json
    assert [topic["name"] for topic in listed] == ["with.settings"]
    assert (
        ask("topic", "delete", "with.settings", "--yes").out == "Topic with.settings is deleted.\n"
    )
    assert ask("topic", "list", "with.>", "--json").json == []


def test_a_topic_that_is_there_is_an_error_unless_that_is_fine(ask: Run, client: Client) -> None:
    client.create_topic("twice")
    again = ask("topic", "create", "twice")
    assert again.code == 4
    assert "exists already" in again.sentence
    assert ask("topic", "create", "twice", "--if-not-exists").code == 0


def test_a_topic_with_other_settings_is_an_error_unless_any_will_do(
    ask: Run, client: Client
) -> None:
    client.create_topic("other", partitions=1, durability="os")
    wanted = ("topic", "create", "other", "--durability", "fsync", "--if-not-exists")
    ended = ask(*wanted)
    assert ended.code == 4
    assert "durability: is os, asked for fsync" in ended.sentence
    assert "--if-not-exists --any-settings" in ended.sentence
    assert "with 1 partition and durability os" in ask(*wanted, "--any-settings").out
    alone = ask("topic", "create", "other", "--any-settings")
    assert (alone.code, "--if-not-exists" in alone.sentence) == (2, True)


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
    assert ["segment_bytes", "128MiB"] in [line.split()[:2] for line in told.splitlines()]
    assert "Slow readers since the start: 0 catch ups" in told


def test_a_compacted_topic_keeps_its_messages_for_good_unless_told_otherwise(ask: Run) -> None:
    made = ask("topic", "create", "kept", "--cleanup", "compact", "--json").json["settings"]
    assert made["retention_seconds"] == 0
    chosen = ask(
        *("topic", "create", "kept.a.day", "--cleanup", "compact", "--retention", "1d", "--json")
    )
    assert chosen.json["settings"]["retention_seconds"] == 86_400


def test_a_topic_is_truncated_before_an_offset(ask: Run, client: Client) -> None:
    client.create_topic("cut", partitions=2)
    for partition in (0, 1):
        for i in range(10):
            client.publish("cut", f"{i}", partition=partition)
    unsure = ask("topic", "truncate", "cut", "--before", "3")
    assert unsure.code == 2
    assert "give --yes" in unsure.sentence
    one = ask("topic", "truncate", "cut", "--before", "7", "--partition", "1", "--yes")
    assert one.out == "Partition 1 of cut begins at offset 7.\n"
    both = ask("topic", "truncate", "cut", "--before", "3", "--yes", "--json")
    assert both.json == {"topic": "cut", "starts": {"0": 3, "1": 7}}
    tail = ask("tail", "cut", "--from", "earliest", "--no-follow", "--json").out.splitlines()
    assert len(tail) == 7 + 3
    assert ask("topic", "truncate", "cut", "--before", "latest", "--yes").code == 0
    assert client.describe_topic("cut").records == 0
    past = ask("topic", "truncate", "cut", "--before", "11", "--yes")
    assert past.code != 0
    assert "ends at offset 10" in past.sentence
    assert ask("topic", "truncate", "cut", "--before", "3", "--partition", "2", "--yes").code == 3


def test_a_topic_grows(ask: Run, client: Client) -> None:
    client.create_topic("growing", partitions=2)
    told = ask("topic", "grow", "growing", "8")
    assert told.code == 0, told.err
    assert told.out == (
        "Topic growing has 8 partitions, 6 more than before. Keys go to other partitions from now "
        "on.\n"
    )
    assert len(client.describe_topic("growing").partitions) == 8
    assert ask("topic", "grow", "growing", "8").out == "Topic growing has 8 partitions already.\n"
    assert len(ask("topic", "grow", "growing", "9", "--json").json["partitions"]) == 9
    fewer = ask("topic", "grow", "growing", "3")
    assert fewer.code != 0
    assert "can only grow" in fewer.sentence
    assert ask("topic", "grow", "nowhere", "3").code == 3
    assert "messages of a key stay in order" in " ".join(ask("topic", "grow", "--help").out.split())


def test_a_topic_is_altered(ask: Run, client: Client) -> None:
    client.create_topic("altered", partitions=2)
    told = ask("topic", "alter", "altered", "--retention", "1d", "--message-bytes-max", "2MiB")
    assert told.code == 0, told.err
    assert told.out.startswith("Topic altered has retention_seconds 1d, message_bytes_max 2MiB now")
    settings = client.describe_topic("altered").settings
    assert (settings.retention_seconds, settings.message_bytes_max) == (86_400, 2 << 20)
    told = ask("topic", "alter", "altered", "--retention-seconds", "3600", "--json")
    assert told.json["settings"]["retention_seconds"] == 3600
    told = ask("topic", "alter", "altered", "--durability", "fsync", "--cleanup", "compact")
    assert told.out.startswith(
        "Topic altered has durability fsync, cleanup compact, retention_seconds 1h now"
    )
    down = ask("topic", "alter", "altered", "--durability", "os")
    assert (down.code, "can only rise" in down.sentence) == (2, True)
    nothing = ask("topic", "alter", "altered")
    assert nothing.code != 0
    assert "at least one setting" in nothing.sentence
    assert ask("topic", "alter", "nowhere", "--retention", "1d").code == 3


def test_a_topic_is_compacted(ask: Run, client: Client) -> None:
    client.create_topic("prices", cleanup="compact")
    for i in range(300):
        client.send("prices", b"%d" % i * 100, key=f"k{i % 3}")
    client.flush()
    told = ask("topic", "compact", "prices")
    assert told.code == 0, told.err
    assert told.out.startswith("Topic prices is compacted: ")
    tail = ask("tail", "prices", "--from", "earliest", "--no-follow", "--json").out.splitlines()
    assert len(tail) == 3
    # There are three records within 300 offsets, and nobody counts them.
    assert "prices  <=300 records" in ask("topic", "describe", "prices").out
    client.create_topic("plain")
    assert "not a compacted one" in ask("topic", "compact", "plain").sentence


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--partitions", "0", "a number from 1 to 4096"),
        ("--durability", "disk", "memory, os or fsync"),
        ("--segment-bytes", "12XB", "a size from 64KiB to 1GiB, such as 64KiB or 128MB"),
        ("--retention", "soon", "a duration of 0s or more, such as 500ms, 30s, 10m or 7d"),
    ],
)
def test_a_wrong_setting_is_answered_with_what_is_allowed(
    typed: Run, flag: str, value: str, allowed: str
) -> None:
    ended = typed("topic", "create", "t", flag, value)
    assert (ended.code, ended.sentence) == (2, f"{flag} is {value}, but must be {allowed}.")
