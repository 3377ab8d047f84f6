"""`fanlog dead`: list, show, put back, delete, export, purge."""

from __future__ import annotations

import json

from fanlog.sync import Client
from tests.cli.conftest import PATIENCE_SECONDS, Run


def fail_jobs(client: Client, topic: str, count: int) -> None:
    client.create_topic(topic)
    for i in range(count):
        client.publish(topic, f"job {i}", key=f"key-{i}")
    with client.work(topic, queue=f"{topic}-workers", max_deliveries=1) as worker:
        for _ in range(count):
            job = worker.next(PATIENCE_SECONDS)
            job.nack(reason=f"no luck with {job.value.decode()}")


def ids_in(table: str) -> list[str]:
    """The first column: other ones have times, which may look like an id."""
    return [line.split()[0] for line in table.splitlines()[1:]]


def ids(ask: Run, topic: str) -> list[str]:
    found = ask("dead", "list", topic, "--json").json
    return [letter["id"] for letter in sorted(found, key=lambda letter: letter["value"])]


def test_topics_and_letters_are_listed_and_shown(ask: Run, client: Client) -> None:
    fail_jobs(client, "letters.shown", 2)
    topics = {topic["name"]: topic for topic in ask("dead", "list", "--json").json}
    assert topics["dead.letters.shown"]["letters"] == 2
    assert topics["dead.letters.shown"]["sources"] == ["letters.shown"]
    table = ask("dead", "list", "dead.letters.shown").out
    assert "no luck with job 1" in table
    assert "letters.shown-workers" in table
    one = ids(ask, "dead.letters.shown")[0]
    shown = ask("dead", "show", "dead.letters.shown", one, "--json").json
    assert (shown["value"], shown["key"], shown["deliveries"]) == ("job 0", "key-0", 1)
    assert "job 0" in ask("dead", "show", "dead.letters.shown", one).out
    assert len(ask("dead", "list", "dead.letters.shown", "--reason", "job 1", "--json").json) == 1
    assert "no dead letter" in ask("dead", "show", "dead.letters.shown", "5:5").sentence


def test_letters_are_put_back_by_id_and_all_at_once(ask: Run, client: Client) -> None:
    fail_jobs(client, "again", 3)
    one, *_ = ids(ask, "dead.again")
    assert ask("dead", "replay", "dead.again", one).out == "1 dead letter of dead.again replayed.\n"
    client.create_topic("elsewhere")
    ended = ask("dead", "replay", "dead.again", "--all", "--to", "elsewhere", "--yes", "--json")
    assert ended.json == {"topic": "dead.again", "replayed": 2}
    assert client.describe_topic("again").records == 4
    assert client.describe_topic("elsewhere").records == 2
    assert ids(ask, "dead.again") == []


def test_what_is_meant_must_be_said_and_what_is_final_confirmed(ask: Run, client: Client) -> None:
    fail_jobs(client, "careful", 2)
    assert "Say which dead letters" in ask("dead", "replay", "dead.careful").sentence
    assert "Say which dead letters" in ask("dead", "delete", "dead.careful", "--yes").sentence
    assert ask("dead", "replay", "dead.careful", "0:0", "--all").code == 2
    assert "give --yes" in ask("dead", "purge", "dead.careful").sentence
    assert len(ids(ask, "dead.careful")) == 2


def test_letters_are_deleted_and_purged(ask: Run, client: Client) -> None:
    fail_jobs(client, "gone", 4)
    one, *_ = ids(ask, "dead.gone")
    assert ask("dead", "delete", "dead.gone", one, "--yes", "--json").json["deleted"] == 1
    ended = ask("dead", "delete", "dead.gone", "--reason", "job 3", "--yes", "--json")
    assert ended.json["deleted"] == 1
    assert (
        ask("dead", "purge", "dead.gone", "--yes").out == "2 dead letters of dead.gone deleted.\n"
    )
    assert ids(ask, "dead.gone") == []


def test_an_export_is_json_lines(ask: Run, client: Client) -> None:
    fail_jobs(client, "taken", 3)
    lines = ask("dead", "export", "dead.taken").out.splitlines()
    assert sorted(json.loads(line)["value"] for line in lines) == ["job 0", "job 1", "job 2"]


def test_a_letter_may_hold_anything_and_is_shown_as_it_is(ask: Run, client: Client) -> None:
    topic = "brackets"
    client.publish(topic, "[/b] value [1, 2]", key="[red]key", headers={"[/h]": "[/i]"})
    with client.work(topic, queue="[bold]q", max_deliveries=1) as worker:
        worker.next(PATIENCE_SECONDS).nack(reason="[/b] \x1b[31mreason")
    for shown in (
        ask("dead", "list", "dead.brackets").out,
        ask("dead", "show", "dead.brackets", "0:0").out,
    ):
        for part in ("[/b] value [1, 2]", "[red]key", "[bold]q", "[/b] \\x1b[31mreason"):
            assert part in shown


def test_a_page_of_letters_says_that_there_are_more(ask: Run, client: Client) -> None:
    fail_jobs(client, "pages", 3)
    page = ask("dead", "list", "dead.pages", "-n", "2")
    assert ids_in(page.out) == ["0:0", "0:1"]
    assert "--after 0:1" in page.err
    rest = ask("dead", "list", "dead.pages", "-n", "2", "--after", "0:1")
    assert ids_in(rest.out) == ["0:2"]
    assert rest.err == ""


def test_a_topic_of_jobs_is_not_taken_for_one_of_letters(ask: Run, client: Client) -> None:
    fail_jobs(client, "healthy", 1)
    assert "not a dead-letter topic" in ask("dead", "list", "healthy").sentence
