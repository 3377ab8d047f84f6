"""Resumable streams as events: one rendering for all readers, and every way in which they end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fanlog.format import streams
from fanlog.format.sse_views import StreamView
from fanlog.listeners.web import server
from tests.client.ways import until
from tests.listeners.web.conftest import Serving
from tests.listeners.web.event_source import EventSource, following

PATH = "/v1/streams/a?format=sse"


async def rest(source: EventSource) -> tuple[list[str], Any]:
    """The texts up to the end, and what the end says. Nothing comes behind it."""
    texts: list[str] = []
    while (event := await source.next()).kind == "message":
        texts.append(event.data["text"])
    assert event.kind == "end"
    with pytest.raises(EOFError):
        await source.next()
    return texts, event.data["error"]


async def test_a_piece_is_rendered_once_for_all_readers(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers, pieces, rendered = 20, 10, 0
    render = StreamView.render_records

    def count(self: StreamView, *given: Any) -> bytes:
        nonlocal rendered
        rendered += 1
        return render(self, *given)

    monkeypatch.setattr(StreamView, "render_records", count)
    async with serving() as site, AsyncExitStack() as stack:
        stream = site.broker.stream("a")
        await stream.open()
        sources = [
            await stack.enter_async_context(following(site.http, PATH)) for _ in range(readers)
        ]
        partition = site.listener.bus.core.catalog.get("_stream.a").partitions[0]
        await until(lambda: partition.readers == readers)
        for i in range(pieces):
            await stream.append(str(i))
        await stream.end()
        for source in sources:
            assert await rest(source) == ([str(i) for i in range(pieces)], None)
        assert rendered <= pieces + 1
        # Those who come later share what they read back, too.
        before = rendered
        for _ in range(readers):
            async with following(site.http, PATH) as source:
                assert await rest(source) == ([str(i) for i in range(pieces)], None)
        assert rendered - before <= pieces + 1
        await until(lambda: not site.listener.streams)


async def test_marks_are_not_shown_and_nothing_comes_behind_the_end(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.stream("a").open()
        for value, mark in (
            (b"x", None),
            (b"", streams.ALIVE),
            (b"y", None),
            (b"", streams.ALIVE),
            (b"", streams.END),
            (b"late", None),
            (b"", streams.END),
        ):
            headers = None if mark is None else {streams.MARK: mark}
            # In one batch, or in few.
            await site.broker.send("_stream.a", value, headers=headers)
        await site.broker.flush()
        async with following(site.http, PATH) as source:
            first = await source.next("message")
            assert first.data["text"] == "x"
            second = await source.next("message")
            assert await rest(source) == ([], None)
        async with following(site.http, PATH, first.id) as source:
            assert await rest(source) == (["y"], None)
        async with following(site.http, PATH, second.id) as source:
            assert await rest(source) == ([], None)
            end = source.id
        async with site.http.get(PATH, headers={"Last-Event-ID": end}) as answer:
            assert answer.status == 204


async def test_a_stream_that_is_deleted_ends_with_an_error(serving: Serving) -> None:
    async with serving() as site:
        stream = site.broker.stream("a")
        await stream.append("x")
        async with following(site.http, PATH) as source:
            assert await source.text() == "x"
            await stream.delete()
            texts, error = await rest(source)
        assert (texts, error["code"]) == ([], "stream_gone")


async def test_a_beginning_that_is_gone_is_an_error(serving: Serving) -> None:
    async with serving() as site:
        stream = site.broker.stream("a")
        for i in range(5):
            await stream.append(str(i))
        await site.broker.delete_records("_stream.a", {0: 3})
        async with following(site.http, PATH) as source:
            texts, error = await rest(source)
        assert (texts, error["code"]) == ([], "messages_lost")


async def test_a_writer_that_says_it_is_alive_is_not_silent(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test looks after the connection itself, at times of its own.
    monkeypatch.setattr(server, "_SWEEP_SECONDS", 3600.0)
    async with serving() as site:
        stream = site.broker.stream("a")
        await stream.append("x")
        async with following(site.http, f"{PATH}&idle_seconds=1000") as source:
            assert await source.text() == "x"
            (connection,) = site.listener.streams
            now = asyncio.get_running_loop().time()
            connection.swept(now + 900)
            await site.broker.publish("_stream.a", b"", headers={streams.MARK: streams.ALIVE})
            connection.swept(now + 1800)
            connection.swept(now + 2700)
            assert not connection.closing
            connection.swept(now + 2900)
            texts, error = await rest(source)
        assert (texts, error["code"]) == ([], "stream_silent")
