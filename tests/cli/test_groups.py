"""`fanlog group`: list, describe, reset and delete; and `fanlog tail --group`."""

from __future__ import annotations

import pytest

import fanlog
from fanlog.sync import Client
from tests.cli.conftest import PATIENCE_SECONDS, Run


def consumed(client: Client, topic: str, group: str, count: int) -> None:
    """A group that has read and committed so many messages, and has no members."""
    with client.consume(topic, group=group, reset="earliest", commit="manual") as member:
        for _ in range(count):
            member.next(PATIENCE_SECONDS)
        member.commit()


def test_a_group_is_listed_and_described_with_its_members_and_lag(ask: Run, client: Client) -> None:
    client.create_topic("g1.in", partitions=2)
    for _ in range(3):
        client.publish("g1.in", b"x", partition=0)
    with client.consume("g1.in", group="g1.billing", member="mia", reset="earliest") as member:
        member.next(PATIENCE_SECONDS)
        member.commit()
        described = ask("group", "describe", "g1.billing", "--json").json
        assert (described["state"], described["kind"], described["lag"]) == ("active", "stream", 2)
        assert described["lag_seconds"] > 0
        assert [(m["id"], m["static"], m["partitions"]) for m in described["members"]] == [
            ("mia", True, 2)
        ]
        told = ask("group", "describe", "g1.billing").out
        assert "g1.billing  stream, active, 2 behind" in told
        assert "mia (static)" in told
        header, row = ask("group", "list", "g1.>").out.splitlines()
        assert header.split() == [
            *("GROUP", "KIND", "STATE", "MEMBERS", "PARTITIONS", "LAG", "BEHIND")
        ]
        assert row.split()[:6] == ["g1.billing", "stream", "active", "1", "2", "2"]
    assert ask("group", "list", "g1.*", "--json").json[0]["state"] == "inactive"


def test_a_reset_shows_what_it_would_do_and_does_it_when_told(ask: Run, client: Client) -> None:
    client.publish_many("g2.in", [b"x"] * 5)
    consumed(client, "g2.in", "g2", 4)
    unasked = ask("group", "reset", "g2", "--to", "earliest")
    assert unasked.code == 2
    assert "give --yes" in unasked.sentence
    dry = ask("group", "reset", "g2", "--to", "1", "--dry-run")
    assert (dry.code, dry.out.splitlines()[1].split()) == (0, ["g2.in", "0", "4", "1", "-3"])
    assert client.groups.describe("g2").partitions[0].committed == 4
    done = ask("group", "reset", "g2", "--to", "1", "--topic", "g2.in", "-p", "0", "--yes")
    assert done.out.splitlines()[-1] == "Group g2 is reset in 1 partition."
    assert client.groups.describe("g2").partitions[0].committed == 1
    by_json = ask("group", "reset", "g2", "--to", "latest", "--yes", "--json")
    assert by_json.json == [{"topic": "g2.in", "partition": 0, "before": 1, "after": 5}]


def test_a_group_with_members_is_neither_reset_nor_deleted(ask: Run, client: Client) -> None:
    client.publish("g3.in", b"x")
    with client.consume("g3.in", group="g3", member="max", reset="earliest") as member:
        member.next(PATIENCE_SECONDS)
        for command in (("reset", "g3", "--to", "latest"), ("delete", "g3")):
            ended = ask("group", *command, "--yes")
            assert ended.code == 1
            assert "has members (max)" in ended.sentence


def test_a_group_is_deleted_for_good(ask: Run, client: Client) -> None:
    client.publish("g4.in", b"x")
    consumed(client, "g4.in", "g4", 1)
    assert ask("group", "delete", "g4").code == 2
    assert ask("group", "delete", "g4", "--yes").out == "Group g4 is deleted.\n"
    ended = ask("group", "describe", "g4")
    assert ended.code == 3
    assert "There is no group 'g4'" in ended.sentence


def test_tail_reads_as_a_member_and_commits_what_it_has_shown(ask: Run, client: Client) -> None:
    client.publish_many("g5.in", [b"1", b"2", b"3"])
    tailed = ("tail", "g5.in", "--group", "g5", "--from", "earliest", "--values-only", "-n")
    assert ask(*tailed, "2").out == "1\n2\n"
    assert client.groups.describe("g5").partitions[0].committed == 2
    assert ask(*tailed, "1").out == "3\n"
    since = ("tail", "g5.in", "--group", "g5.since", "--from", "10m", "--values-only", "-n", "3")
    assert ask(*since).out == "1\n2\n3\n"


@pytest.mark.parametrize("flags", [("--partition", "1"), ("--no-follow",), ("--from", "10")])
def test_tail_as_a_member_takes_what_the_group_gives(typed: Run, flags: tuple[str, ...]) -> None:
    ended = typed("tail", "t", "--group", "g", *flags)
    assert ended.code == 2
    assert "A group decides itself" in ended.sentence


def test_a_queue_is_described_with_its_backoff_and_what_waits_for_it(
    ask: Run, client: Client
) -> None:
    client.publish_many("g9.in", [b"1", b"2"])
    hourly = fanlog.Backoff(first_seconds=3600, factor=3, max_seconds=7200, jitter=0.25)
    with client.work("g9.in", queue="g9", retry=hourly) as worker:
        worker.next(PATIENCE_SECONDS).nack(reason="no")
        told = ask("group", "describe", "g9").out
        rule = "Retry: after 3600 s, each time 3 times as long, at most 7200 s, less up to 25% by"
        assert rule in " ".join(told.split())
        assert "1 failed job waits for the next attempt; the first is due in " in told
        (partition,) = ask("group", "describe", "g9", "--json").json["partitions"]
        assert partition["retrying"] == 1
        assert 2000 < partition["next_retry_seconds"] < 3601
    with client.work("g9.in", queue="g9", retry_delay_seconds=0):
        assert "Retry: at once." in ask("group", "describe", "g9").out


def test_urgent_messages_are_published_counted_and_shown(ask: Run, client: Client) -> None:
    ask("publish", "g10.in", "low")
    ask("publish", "g10.in", "urgent", "--priority", "9")
    assert ask("publish", "g10.in", "x", "--priority", "10").code == 2
    (shown,) = [
        line
        for line in ask("tail", "g10.in", "--from", "earliest", "-n", "2", "--json").lines
        if line["value"] == "urgent"
    ]
    assert shown["priority"] == 9
    client.publish_many("g10.in", [b"a", b"b"], priority=4)
    with client.work("g10.in", queue="g10") as worker:
        assert worker.next(PATIENCE_SECONDS).value == b"urgent"
        assert "Urgent: 2 of priority 4." in ask("group", "describe", "g10").out
        (partition,) = ask("group", "describe", "g10", "--json").json["partitions"]
        assert partition["urgent"] == {"4": 2}
