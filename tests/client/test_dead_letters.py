"""Dead letters: seen, put back, deleted, exported, over every way to the API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fanlog.client.dead_letters import DeadLetter
from fanlog.errors import InvalidArgumentError, RequestError, TopicNotFoundError
from tests.client.queues.hands import work
from tests.client.ways import PATIENCE_SECONDS, WAYS, Blocking, Way

pytestmark = pytest.mark.parametrize("name", WAYS)


class Letters:
    """`client.dead_letters`, alike for asyncio and for threads."""

    def __init__(self, client: Any) -> None:
        self._blocking = isinstance(client, Blocking)
        self._letters = client._client.dead_letters if self._blocking else client.dead_letters

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._letters, name)

        def in_thread(*given: Any, **named: Any) -> Any:
            found = call(*given, **named)
            return list(found) if hasattr(found, "__next__") else found

        async def called(*given: Any, **named: Any) -> Any:
            if self._blocking:
                return await asyncio.to_thread(in_thread, *given, **named)
            found = call(*given, **named)
            if hasattr(found, "__aiter__"):
                return [item async for item in found]
            return await found

        return called


async def fail_jobs(client: Any, count: int) -> None:
    """Makes `count` dead letters of the topic `jobs`, and one job that is done."""
    await client.create_topic("jobs", partitions=2)
    for i in range(count):
        headers = {"trace": f"t{i}"}
        await client.publish("jobs", f"job {i}", key=f"key-{i}", headers=headers)
    await client.publish("jobs", "fine")
    async with work(client, "jobs", queue="workers", max_deliveries=1) as worker:
        for _ in range(count + 1):
            job = await worker.next(PATIENCE_SECONDS)
            if job.value == b"fine":
                await job.ack()
            else:
                await job.nack(reason=f"broken: {job.value.decode()}")


async def read_all(client: Any, topic: str) -> list[Any]:
    info = await client.describe_topic(topic)
    found: list[Any] = []
    async with client.subscribe(topic, start="earliest") as reader:
        while len(found) < info.records:
            found.append(await reader.next(PATIENCE_SECONDS))
    return found


def sorted_ids(letters: list[DeadLetter]) -> list[str]:
    return [letter.id for letter in sorted(letters, key=lambda one: one.value or b"")]


async def test_a_letter_says_where_it_came_from_and_why(name: str, tmp_path: Path) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await fail_jobs(client, 3)
        letters = Letters(client)
        (topic,) = await letters.topics()
        assert (topic.name, topic.letters, topic.sources) == ("dead.jobs", 3, ("jobs",))
        found = await letters.list("dead.jobs")
        first = next(letter for letter in found if letter.value == b"job 0")
        assert first.death.topic == "jobs"
        assert first.death.queue == "workers"
        assert first.death.reason == "broken: job 0"
        assert first.death.deliveries == 1
        assert first.death.worker
        assert first.death.key == b"key-0"
        assert first.headers == {"trace": b"t0"}
        assert await letters.show("dead.jobs", first.id) == first
        assert len(await letters.list("dead.jobs", limit=2)) == 2
        assert await letters.list("dead.jobs", after=found[0].id) == found[1:]
        with pytest.raises(InvalidArgumentError, match="no dead letter '9:9'"):
            await letters.show("dead.jobs", "9:9")


async def test_one_some_or_all_letters_go_back_to_where_they_came_from(
    name: str, tmp_path: Path
) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await fail_jobs(client, 5)
        letters = Letters(client)
        ids = sorted_ids(await letters.list("dead.jobs"))
        assert await letters.replay("dead.jobs", ids[:1]) == 1
        assert await letters.replay("dead.jobs", ids[1:3]) == 2
        assert sorted_ids(await letters.list("dead.jobs")) == ids[3:]
        assert await letters.replay("dead.jobs") == 2
        assert await letters.list("dead.jobs") == []
        again = await read_all(client, "jobs")
        values = sorted(message.value for message in again)
        assert values == sorted([b"fine", *(b"job %d" % i for i in range(5) for _ in "12")])
        for message in again:
            if message.value != b"fine":
                number = message.value.decode().removeprefix("job ")
                assert message.key == f"key-{number}".encode()
                assert message.headers == {"trace": f"t{number}".encode()}


async def test_a_page_goes_on_behind_a_letter_that_is_gone(name: str, tmp_path: Path) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await fail_jobs(client, 4)
        letters = Letters(client)
        first = await letters.list("dead.jobs", limit=2)
        await letters.delete("dead.jobs", [first[-1].id])
        second = await letters.list("dead.jobs", after=first[-1].id, limit=2)
        assert len({letter.id for letter in (*first, *second)}) == 4
        with pytest.raises(InvalidArgumentError, match="An id looks like 0:12"):
            await letters.list("dead.jobs", after="yesterday")


async def test_letters_in_a_topic_of_ones_own_are_listed_too(name: str, tmp_path: Path) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await client.create_topic("failed")
        await client.publish("jobs", "a job")
        async with work(client, "jobs", queue="workers", dead_letter="failed") as worker:
            job = await worker.next(PATIENCE_SECONDS)
            await job.reject("no luck")
        async with work(client, "jobs", queue="others", dead_letter="not.there.yet"):
            pass
        topics = await Letters(client).topics()
        assert [(topic.name, topic.letters) for topic in topics] == [("failed", 1)]


async def test_letters_may_go_elsewhere_if_there_is_such_a_topic(name: str, tmp_path: Path) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await fail_jobs(client, 2)
        letters = Letters(client)
        with pytest.raises(TopicNotFoundError):
            await letters.replay("dead.jobs", to="nowhere")
        assert len(await letters.list("dead.jobs")) == 2
        await client.create_topic("jobs.by.hand")
        assert await letters.replay("dead.jobs", to="jobs.by.hand") == 2
        values = [message.value for message in await read_all(client, "jobs.by.hand")]
        assert sorted(values) == [b"job 0", b"job 1"]


async def test_letters_are_deleted_by_id_or_by_condition_and_only_then(
    name: str, tmp_path: Path
) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await fail_jobs(client, 4)
        letters = Letters(client)
        ids = sorted_ids(await letters.list("dead.jobs"))
        assert await letters.delete("dead.jobs", [ids[0]]) == 1
        assert await letters.delete("dead.jobs", where=lambda one: "job 3" in one.death.reason) == 1
        assert sorted_ids(await letters.list("dead.jobs")) == ids[1:3]
        with pytest.raises(RequestError, match=f"There is no dead letter {ids[0]} in 'dead.jobs'"):
            await letters.delete("dead.jobs", [ids[0]])
        with pytest.raises(RequestError, match=r"no dead letters 0:98, 0:99 .* other 1 is done"):
            await letters.delete("dead.jobs", ["0:99", ids[1], "0:98"])
        with pytest.raises(InvalidArgumentError, match="An id looks like 0:12"):
            await letters.delete("dead.jobs", [ids[2], "twelve"])
        assert sorted_ids(await letters.list("dead.jobs")) == ids[2:3]
        with pytest.raises(InvalidArgumentError, match="Choose the dead letters"):
            await letters.delete("dead.jobs")


async def test_a_purge_leaves_nothing_and_new_letters_still_come(name: str, tmp_path: Path) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await fail_jobs(client, 2)
        letters = Letters(client)
        assert await letters.purge("dead.jobs") == 2
        assert await letters.list("dead.jobs") == []
        with pytest.raises(InvalidArgumentError, match="not a dead-letter topic"):
            await letters.purge("jobs")
        await client.publish("jobs", "job 9", key="k")
        async with work(client, "jobs", queue="workers") as worker:
            await (await worker.next(PATIENCE_SECONDS)).reject("no use")
        (letter,) = await letters.list("dead.jobs")
        assert (letter.value, letter.death.reason) == (b"job 9", "no use")


async def test_an_export_is_a_json_object_a_line(name: str, tmp_path: Path) -> None:
    async with Way(name, tmp_path / "data").open() as client:
        await fail_jobs(client, 2)
        lines = await Letters(client).export("dead.jobs")
        assert all(line.endswith(b"\n") for line in lines)
        documents = [json.loads(line) for line in lines]
        assert sorted(document["value"] for document in documents) == ["job 0", "job 1"]
        assert {document["reason"] for document in documents} == {"broken: job 0", "broken: job 1"}
        assert all(document["topic"] == "jobs" for document in documents)


async def test_letters_outlive_a_restart_and_a_compaction(name: str, tmp_path: Path) -> None:
    way = Way(name, tmp_path / "data")
    async with way.open() as client:
        await fail_jobs(client, 3)
        letters = Letters(client)
        ids = sorted_ids(await letters.list("dead.jobs"))
        await letters.delete("dead.jobs", ids[:1])
    async with way.open() as client:
        await client.compact_topic("dead.jobs")
        assert sorted_ids(await Letters(client).list("dead.jobs")) == ids[1:]
