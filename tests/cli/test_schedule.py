"""`fanlog schedule`, and `fanlog publish` for later."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from fanlog.sync import Client
from tests.cli.conftest import PATIENCE_SECONDS, Run


def test_a_message_is_published_later_and_listed_until_it_goes_out(
    ask: Run, client: Client
) -> None:
    soon = ask("publish", "s1.mails", "soon", "--delay", "300ms", "--key", "k", "--json").json
    assert soon["due_us"] > time.time() * 1e6 - 60e6
    later = ask("publish", "s1.mails", "later", "--at", "2099-01-31T12:00+01:00", "--id", "s1-x")
    assert later.code == 2
    assert "schedule_seconds_max" in later.sentence
    year = dt.datetime.now(dt.UTC).year + 1
    later = ask("publish", "s1.mails", "later", "--at", f"{year}-01-31T12:00+01:00", "--id", "s1-x")
    assert f"s1.mails, due at {year}-01-31" in later.out
    assert "id s1-x" in later.out
    with client.subscribe("s1.mails", start="earliest") as mails:
        assert mails.next(PATIENCE_SECONDS).value == b"soon"
    (listed,) = ask("schedule", "pending", "s1.mails", "--json").json
    assert (listed["id"], listed["topic"], listed["value_bytes"]) == ("s1-x", "s1.mails", 5)
    header, row = ask("schedule", "pending", "s1.mails").out.splitlines()
    assert header.split() == ["ID", "TOPIC", "DUE", "KEY", "SIZE"]
    assert row.split()[:2] == ["s1-x", "s1.mails"]
    assert ask("schedule", "cancel", "s1-x").out == "s1-x is cancelled\n"
    ask("publish", "s1.mails", "twice", "--delay", "1h", "--id", "s1-y")
    assert ask("schedule", "cancel", "s1-y", "s1-y").out == "s1-y is cancelled\n"
    again = ask("schedule", "cancel", "s1-x")
    assert again.code == 3
    assert "is not waiting" in again.sentence


def test_lines_are_published_later_too(ask: Run, client: Client) -> None:
    done = ask("publish", "s2", "--delay", "1h", stdin=b"a\nb\nc\n")
    assert done.out.startswith("3 messages to s2")
    assert len(list(client.scheduled("s2"))) == 3
    limited = ask("schedule", "pending", "s2", "--limit", "2")
    assert len(limited.out.splitlines()) == 3
    assert "Show more with --limit" in limited.err


def test_a_schedule_is_added_listed_changed_and_removed(ask: Run, client: Client) -> None:
    added = ask("schedule", "add", "s3", "s3.jobs", "run", "--every", "1s", "-H", "a=b", "-k", "k")
    assert "s3 publishes to s3.jobs, next at" in added.out
    with client.subscribe("s3.jobs", start="earliest") as jobs:
        message = jobs.next(PATIENCE_SECONDS)
    assert (message.value, message.key, message.headers["a"]) == (b"run", b"k", b"b")
    assert message.headers["fanlog-schedule"] == b"s3"
    changed = ask(
        *("schedule", "add", "s3", "s3.jobs", "run", "--cron", "0 8 * * 1-5"),
        *("--timezone", "Europe/Berlin", "--missed", "skip", "--json"),
    ).json
    assert (changed["cron"], changed["timezone"]) == ("0 8 * * 1-5", "Europe/Berlin")
    (listed,) = [info for info in ask("schedule", "list", "--json").json if info["name"] == "s3"]
    assert (listed["missed"], listed["topic"]) == ("skip", "s3.jobs")
    assert "0 8 * * 1-5 Europe/Berlin" in ask("schedule", "list").out
    assert ask("schedule", "remove", "s3").out == "s3 is removed\n"
    assert ask("schedule", "remove", "s3").code == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("publish", "t", "x", "--delay", "soon"), "--delay: 'soon' is not a duration"),
        (("publish", "t", "x", "--at", "tomorrow"), "--at: 'tomorrow' is not a time"),
        (("publish", "t", "x", "--delay", "1s", "--at", "2027-01-01"), "exclude each other"),
        (("publish", "t", "x", "--id", "y"), "--id is for one message"),
        (("schedule", "add", "n", "t", "x"), "cron or every_seconds"),
        (("schedule", "add", "n", "t", "x", "--cron", "99 * * * *"), "not a cron expression"),
        (
            ("schedule", "add", "n", "t", "x", "--every", "soon"),
            "--every: 'soon' is not a duration",
        ),
        (("schedule", "add", "n", "t", "x", "--every", "1m", "--missed", "x"), "'once', 'skip'"),
        (("schedule", "add", "n", "t", "x", "--every", "0s"), "more than 0"),
        (
            ("schedule", "add", "n", "t", "x", "--every", "1m", "--timezone", "Europe/Berlin"),
            "belongs to a cron expression",
        ),
        (("tail", "t", "--group", "g", "--policy", "skip"), "leave --policy out"),
    ],
)
def test_what_is_written_wrongly_is_answered_with_how_to_write_it(
    ask: Run, words: tuple[str, ...], said: str
) -> None:
    answer = ask(*words)
    assert answer.code == 2
    assert said in answer.sentence
