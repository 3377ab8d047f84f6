"""Resumable streams by HTTP alone: as events, as text and as JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from fanlog.listeners.web import resumable
from tests.client.ways import PATIENCE_SECONDS, until
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.event_source import following
from tests.servers import find_program

TOKENS = ["Tea ", "[1] ", "[2]", "{}", "is\n", "ready — ", "now."]
EVENTS = {"Accept": "text/event-stream"}


async def ask(site: Site, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with site.http.request(method, f"/v1/streams/{path}", **more) as answer:
        data = await answer.read()
        return answer.status, msgspec.json.decode(data) if data else None


async def written(site: Site, name: str = "a", end: str = "end") -> None:
    assert (await ask(site, "POST", name))[0] == 201
    for token in TOKENS:
        assert (await ask(site, "POST", f"{name}/append", data=token.encode()))[0] == 200
    if end:
        assert await ask(site, "POST", f"{name}/{end}") == (204, None)


class Events:
    """What an event stream brought: `(event, id, data)` of each."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> tuple[str, str, Any] | None:
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := (await self._answer.content.readline()).decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif "data" in fields:
                    event = fields.get("event", "message")
                    return event, fields.get("id", ""), msgspec.json.decode(fields["data"])
        return None

    async def all(self) -> list[tuple[str, str, Any]]:
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


async def events(site: Site, path: str, **headers: str) -> list[tuple[str, str, Any]]:
    async with site.http.get(f"/v1/streams/{path}", headers=EVENTS | headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        return await Events(answer).all()


async def test_a_stream_is_written_and_read_in_each_form(serving: Serving) -> None:
    async with serving() as site:
        await written(site)
        async with site.http.get("/v1/streams/a") as answer:
            assert answer.content_type == "text/plain"
            assert await answer.text() == "".join(TOKENS)
        status, pieces = await ask(site, "GET", "a?format=json")
        assert (status, pieces["ended"], pieces["error"]) == (200, True, None)
        assert [message["text"] for message in pieces["messages"]] == TOKENS
        *messages, end = await events(site, "a")
        assert [data["text"] for _, _, data in messages] == TOKENS
        assert [data["offset"] for _, _, data in messages] == list(range(len(TOKENS)))
        assert (end[0], end[2]) == ("end", {"error": None})
        assert await ask(site, "DELETE", "a") == (204, None)
        assert (await ask(site, "GET", "a"))[0] == 404


async def test_reading_continues_at_a_position_in_each_form(serving: Serving) -> None:
    async with serving() as site:
        await written(site)
        *messages, end = await events(site, "a")
        for i, (_, position, _) in enumerate(messages):
            rest = TOKENS[i + 1 :]
            for given in (
                events(site, "a", **{"Last-Event-ID": position}),
                events(site, f"a?last_event_id={position}"),
                events(site, f"a?position={position}"),
            ):
                *more, last = await given
                assert [data["text"] for _, _, data in more] == rest
                assert last == end
            async with site.http.get(f"/v1/streams/a?position={position}") as answer:
                assert await answer.text() == "".join(rest)
            _, pieces = await ask(site, "GET", f"a?format=json&position={position}")
            assert [message["text"] for message in pieces["messages"]] == rest
            assert pieces["ended"]
        # An EventSource that knows the end is told to stay away.
        headers = EVENTS | {"Last-Event-ID": end[1]}
        async with site.http.get("/v1/streams/a", headers=headers) as answer:
            assert answer.status == 204
        _, pieces = await ask(site, "GET", f"a?format=json&position={end[1]}")
        assert (pieces["messages"], pieces["ended"]) == ([], True)


async def test_events_come_while_the_stream_is_written_and_on_another_process(
    serving: Serving,
) -> None:
    async with serving() as site:
        await written(site, end="")
        other = await site.broker.listen_web()
        url = f"http://127.0.0.1:{other.port}/v1/streams/a?format=sse"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            reading = Events(answer)
            got = [await reading.next() for _ in TOKENS]
            await ask(site, "POST", "a/append", data=b"more")
            more = await reading.next()
            assert more is not None
            assert more[2]["text"] == "more"
            await ask(site, "POST", "a/end", params={"error": "the model is gone"})
            end = await reading.next()
            assert end is not None
            assert end[2]["error"] == {"code": "stream_failed", "message": "the model is gone"}
            assert await reading.next() is None
        assert len(got) == len(TOKENS)
        _, pieces = await ask(site, "GET", "a?format=json")
        assert pieces["error"] == {"code": "stream_failed", "message": "the model is gone"}


async def test_json_polls_for_what_comes(serving: Serving) -> None:
    async with serving() as site:
        await ask(site, "POST", "a")
        _, empty = await ask(site, "GET", "a?format=json")
        assert (empty["messages"], empty["ended"]) == ([], False)
        got: list[str] = []

        async def poll() -> None:
            position, ended = empty["position"], False
            while not ended:
                path = f"a?format=json&wait_seconds={PATIENCE_SECONDS}&position={position}"
                _, pieces = await ask(site, "GET", path)
                got.extend(message["text"] for message in pieces["messages"])
                position, ended = pieces["position"], pieces["ended"]

        polling = asyncio.create_task(poll())
        for token in TOKENS:
            await ask(site, "POST", "a/append", data=token.encode())
            await until(lambda token=token: got[-1:] == [token])
        await ask(site, "POST", "a/end")
        await asyncio.wait_for(polling, PATIENCE_SECONDS)
        assert got == TOKENS


async def test_half_a_text_never_looks_whole(serving: Serving) -> None:
    async with serving() as site:
        await written(site, end="")
        await ask(site, "POST", "a/end", params={"error": "gone"})
        async with site.http.get("/v1/streams/a") as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        # The writer has died.
        await written(site, "b", end="")
        async with site.http.get("/v1/streams/b?idle_seconds=0.01") as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        *_, end = await events(site, "b?idle_seconds=0.01")
        assert end[2]["error"]["code"] == "stream_silent"


async def test_comments_keep_a_silent_stream_open(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "_COMMENT_SECONDS", 0.01)
    async with serving() as site:
        await ask(site, "POST", "a")
        async with site.http.get("/v1/streams/a", headers=EVENTS) as answer:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await answer.content.readline() != b": alive\n":
                    pass
            await ask(site, "POST", "a/append", data=b"x")
            found = await Events(answer).next()
            assert found is not None
            assert found[2]["text"] == "x"


async def test_a_process_that_drains_sends_readers_of_events_elsewhere(serving: Serving) -> None:
    async with serving() as site:
        await written(site, end="")
        async with site.http.get("/v1/streams/a", headers=EVENTS) as answer:
            reading = Events(answer)
            for _ in TOKENS:
                last = await reading.next()
            assert last is not None
            draining = asyncio.create_task(site.listener.drain(asyncio.get_running_loop().time()))
            away = await reading.next()
            assert away is not None
            assert (away[0], away[2]["reason"]) == ("reconnect", "draining")
            assert await reading.next() is None
            await draining
        # It continues on another process.
        other = await site.broker.listen_web()
        await site.broker.stream("a", mode="existing").end()
        url = f"http://127.0.0.1:{other.port}/v1/streams/a"
        headers = EVENTS | {"Last-Event-ID": last[1]}
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
            end = await Events(answer).next()
            assert end is not None
            assert end[0] == "end"


async def test_readers_who_go_leave_nothing_behind(serving: Serving) -> None:
    async with serving() as site:
        await ask(site, "POST", "a")
        partition = site.listener.bus.core.catalog.get("_stream.a").partitions[0]
        answers = [
            await site.http.get("/v1/streams/a", headers=headers) for headers in (EVENTS, {}) * 5
        ]
        await until(lambda: partition.readers == 10)
        for answer in answers:
            answer.close()
        await until(lambda: partition.readers == 0)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "nothing", 404, "topic_not_found"),
        ("POST", "nothing/append", 404, "topic_not_found"),
        ("POST", "nothing/end", 404, "topic_not_found"),
        ("DELETE", "nothing", 404, "topic_not_found"),
        ("POST", "ended", 409, "topic_exists"),
        ("POST", "ended?mode=continue", 409, "stream_ended"),
        ("POST", "ended/append", 409, "stream_ended"),
        ("POST", "ended/end", 409, "stream_ended"),
        ("GET", "ended?position=x", 400, "invalid_argument"),
        ("GET", "ended?position=0.1.1", 410, "messages_lost"),
        ("GET", "ended?format=xml", 400, "invalid_argument"),
        ("POST", "new?ttl_seconds=0", 400, "invalid_argument"),
        ("POST", "new?durability=disk", 400, "invalid_argument"),
        ("POST", "new.*", 400, "invalid_name"),
    ],
)
async def test_a_wrong_request_is_refused(
    serving: Serving, method: str, path: str, status: int, code: str
) -> None:
    async with serving() as site:
        await written(site, "ended")
        got, problem = await ask(site, method, path)
        assert (got, problem["code"]) == (status, code)


@pytest.mark.plain
async def test_curl_reads_a_stream_as_it_comes(serving: Serving) -> None:
    curl = find_program("curl", "apt-get install curl")
    async with serving() as site:
        await written(site)
        for form, expected in (("text", "".join(TOKENS)), ("sse", "event: end\n")):
            process = await asyncio.create_subprocess_exec(
                *(curl, "-sN", f"{site.url}/v1/streams/a?format={form}"),
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
            assert expected in said.decode()


async def test_json_on_several_lines_is_one_event(serving: Serving) -> None:
    async with serving() as site:
        await site.http.post("/v1/streams/s")
        await site.broker.publish("_stream.s", b'{\n\n"a":\r\n1}')
        await site.http.post("/v1/streams/s/end")
        async with following(site.http, "/v1/streams/s?format=sse") as source:
            assert (await source.next("message")).data["json"] == {"a": 1}
            await source.next("end")
