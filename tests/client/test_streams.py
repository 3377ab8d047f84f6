"""Resumable streams, over every implementation of the API."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import fanlog
from fanlog import errors
from fanlog.client import streams
from fanlog.client.blocking import streams as blocking
from fanlog.config import ListenerOptions
from fanlog.node import Node
from tests.client.ways import ALL_WAYS, PATIENCE_SECONDS, BrokerClock, Way, until
from tests.servers import free_port

TOKENS = ["Tea ", "is ", "", "ready ", "— ", "[1]", "now."]


class InThreads:
    """`fanlog.sync.Stream`, each call in a thread."""

    def __init__(self, stream: blocking.BlockingStream[Any]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stream, name)

        async def in_thread(*given: Any, **named: Any) -> Any:
            return await asyncio.to_thread(call, *given, **named)

        return in_thread

    async def __aenter__(self) -> InThreads:
        await asyncio.to_thread(self._stream.__enter__)
        return self

    async def __aexit__(self, *given: Any) -> None:
        await asyncio.to_thread(self._stream.__exit__, *given)

    def read(self, **given: Any) -> ReadInThreads:
        return ReadInThreads(self._stream.read(**given))


class ReadInThreads:
    def __init__(self, reader: blocking.BlockingStreamReader[Any]) -> None:
        self._reader = reader

    @property
    def position(self) -> str:
        return self._reader.position

    @property
    def ended(self) -> bool:
        return self._reader.ended

    async def start(self) -> None:
        await asyncio.to_thread(self._reader.start)

    async def close(self) -> None:
        await asyncio.to_thread(self._reader.close)

    async def __aiter__(self) -> AsyncIterator[Any]:
        pieces = iter(self._reader)
        while (found := await asyncio.to_thread(lambda: list(_first(pieces)))) != []:
            yield found[0]


def _first(pieces: Any) -> Any:
    for piece in pieces:
        yield piece
        return


@pytest.fixture(params=ALL_WAYS)
def way(request: pytest.FixtureRequest, data: Any) -> Way:
    return Way(request.param, data)


def stream(client: Any, *given: Any, **named: Any) -> Any:
    """A stream of whatever client this is, to be used with `await`."""
    if isinstance(client, fanlog.Client):
        return client.stream(*given, **named)
    return InThreads(client._client.stream(*given, **named))


async def written(client: Any, name: str, **given: Any) -> None:
    async with stream(client, name, **given) as answer:
        for token in TOKENS:
            await answer.send(token)


async def failing(client: Any, name: str) -> None:
    async with stream(client, name) as answer:
        await answer.send("half")
        raise ZeroDivisionError("no model")


async def collect(reader: Any, got: list[Any]) -> None:
    """For a reader that raises in the end."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for piece in reader:
            got.append(piece)  # noqa: PERF401 - it raises


async def all_of(reader: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [piece async for piece in reader]


async def test_what_is_written_is_read_until_the_end(way: Way) -> None:
    async with way.open() as client:
        await written(client, "a")
        reader = stream(client, "a").read()
        assert await all_of(reader) == TOKENS
        assert reader.ended
        assert await all_of(reader) == []
        # Who is late, and who was there before anything was written, get the same.
        assert await all_of(stream(client, "a").read()) == TOKENS


async def test_readers_follow_while_it_is_written(way: Way) -> None:
    async with way.open() as client:
        answer = stream(client, "a")
        await answer.open()
        readers = [asyncio.create_task(all_of(stream(client, "a").read())) for _ in range(3)]
        for token in TOKENS:
            await answer.append(token)
        assert not any(reader.done() for reader in readers)
        await answer.end()
        assert await asyncio.gather(*readers) == [TOKENS] * 3


async def test_a_position_continues_with_what_was_not_read_yet(way: Way) -> None:
    async with way.open() as client:
        await written(client, "a")
        reader = stream(client, "a").read()
        positions = []
        got = []
        async for piece in reader:
            got.append(piece)
            positions.append(reader.position)
        assert len(set(positions)) == len(TOKENS)
        for i, position in enumerate(positions):
            rest = await all_of(stream(client, "a").read(position=position))
            assert got[: i + 1] + rest == TOKENS
        # A position behind the end marker, as a subscription of another kind may have it.
        at, log = reader.position.split(".", 1)
        assert await all_of(stream(client, "a").read(position=f"{int(at) + 1}.{log}")) == []


async def test_a_reader_can_be_started_before_it_is_read_and_closed_without(way: Way) -> None:
    async with way.open() as client:
        await written(client, "a")
        reader = stream(client, "a").read()
        await reader.start()
        await reader.start()
        assert way.core.catalog.get("_stream.a").partitions[0].readers == 1
        assert await all_of(reader) == TOKENS
        await reader.start()
        other = stream(client, "a").read()
        await other.start()
        await other.close()
        await until(lambda: way.core.catalog.get("_stream.a").partitions[0].readers == 0)
        assert await all_of(other) == TOKENS


async def test_a_reader_that_stopped_in_the_middle_continues_there(way: Way) -> None:
    async with way.open() as client:
        await written(client, "a")
        reader = stream(client, "a").read()
        got = []
        async for piece in reader:
            got.append(piece)
            if len(got) == 2:
                break
        assert got + await all_of(reader) == TOKENS


async def test_an_error_of_the_writer_reaches_its_readers(way: Way) -> None:
    async with way.open() as client:
        with pytest.raises(ZeroDivisionError):
            await failing(client, "a")
        reader = stream(client, "a").read()
        got: list[str] = []
        with pytest.raises(errors.StreamFailedError, match="ZeroDivisionError: no model"):
            await collect(reader, got)
        assert got == ["half"]
        await stream(client, "b").end(error="too long")
        with pytest.raises(errors.StreamFailedError, match=r"^too long$"):
            await all_of(stream(client, "b").read())


async def test_a_second_writer_is_refused_or_continues_as_it_chose(way: Way) -> None:
    async with way.open() as client:
        await stream(client, "a").append("one")
        with pytest.raises(errors.TopicExistsError, match="Choose another name"):
            await stream(client, "a").append("two")
        await stream(client, "a", mode="continue").append("two")
        await stream(client, "a", mode="existing").end()
        assert await all_of(stream(client, "a").read()) == ["one", "two"]
        for mode in ("continue", "existing"):
            with pytest.raises(errors.StreamEndedError, match="has ended"):
                await stream(client, "a", mode=mode).append("three")
        with pytest.raises(errors.TopicNotFoundError, match="no stream 'b'"):
            await stream(client, "b", mode="existing").append("one")
        await stream(client, "b", mode="continue").append("one")


async def test_a_stream_that_has_ended_takes_nothing_more(way: Way) -> None:
    async with way.open() as client:
        answer = stream(client, "a")
        await answer.append("one")
        await answer.end()
        for more in (answer.append("two"), answer.send("two"), answer.end()):
            with pytest.raises(errors.StreamEndedError):
                await more
        assert await all_of(stream(client, "a").read()) == ["one"]


async def test_a_stream_that_is_not_there_is_an_error_or_is_awaited(way: Way) -> None:
    async with way.open() as client:
        with pytest.raises(errors.TopicNotFoundError, match="no stream 'a'"):
            await all_of(stream(client, "a").read())
        with pytest.raises(errors.TopicNotFoundError, match="no stream 'a'"):
            await stream(client, "a").read().start()
        early = asyncio.create_task(all_of(stream(client, "a").read(missing="wait")))
        await until(lambda: way.core.is_awaited("_stream.a"))
        await written(client, "a")
        assert await early == TOKENS
        with pytest.raises(errors.StreamSilentError):
            await all_of(stream(client, "b").read(missing="wait", idle_seconds=0.01))


async def test_readers_of_a_dead_writer_get_an_error_and_can_continue(way: Way) -> None:
    async with way.open() as client:
        answer = stream(client, "a")
        await answer.append("half")
        reader = stream(client, "a").read(idle_seconds=0.05)
        got: list[str] = []
        with pytest.raises(errors.StreamSilentError, match="have died"):
            await collect(reader, got)
        await answer.append("rest")
        await answer.end()
        assert got + await all_of(stream(client, "a").read(position=reader.position)) == [
            "half",
            "rest",
        ]


async def test_a_slow_writer_in_its_block_is_not_taken_for_dead(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ALIVE_SECONDS", 0.02)
    async with way.open() as client:
        async with stream(client, "a") as answer:
            await until(lambda: way.core.describe("_stream.a").records >= 3)
            await answer.send("at last")
        assert await all_of(stream(client, "a").read()) == ["at last"]


async def test_pieces_may_be_bytes_or_of_a_type(way: Way) -> None:
    @dataclass
    class Step:
        tool: str
        done: bool = False

    async with way.open() as client:
        for name, kind, pieces in (
            ("bytes", bytes, [b"\xff", b""]),
            ("steps", Step, [Step("search"), Step("answer", done=True)]),
            ("numbers", int, [1, 0]),
        ):
            async with stream(client, name, kind) as out:
                for piece in pieces:
                    await out.append(piece)
            assert await all_of(stream(client, name, kind).read()) == pieces
        with pytest.raises(errors.InvalidArgumentError, match="type str, not int"):
            await stream(client, "text").append(1)
        with pytest.raises(errors.TopicNotFoundError):
            await all_of(stream(client, "text").read())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"position": "x"}, "no position"),
        ({"position": "1.2"}, "no position"),
        ({"position": "1.2.-3"}, "no position"),
        ({"position": f"{1 << 63}.1.1"}, "too large"),
        ({"idle_seconds": 0}, "idle_seconds"),
        ({"missing": "x"}, "missing is 'x'"),
        ({"start": "x"}, "start is 'x'"),
    ],
)
async def test_a_wrong_argument_is_named(given: Any, says: str) -> None:
    async with fanlog.Broker() as client:
        with pytest.raises(errors.InvalidArgumentError, match=says):
            client.stream("a").read(**given)
        with pytest.raises(errors.InvalidArgumentError, match="mode is 'x'"):
            client.stream("a", mode="x")  # type: ignore[arg-type]


async def test_a_position_of_another_stream_of_the_name_is_a_loss(way: Way) -> None:
    async with way.open() as client:
        await written(client, "a")
        reader = stream(client, "a").read()
        await all_of(reader)
        await stream(client, "a").delete()
        await written(client, "a")
        with pytest.raises(errors.MessagesLostError):
            await all_of(stream(client, "a").read(position=reader.position))


async def test_a_stream_whose_beginning_is_gone_never_looks_whole(way: Way) -> None:
    async with way.open() as client:
        async with stream(client, "a", bytes_max=4096) as answer:
            for _ in range(100):
                await answer.append("x" * 200)
        with pytest.raises(errors.MessagesLostError):
            await all_of(stream(client, "a").read())
        first = way.core.describe("_stream.a").partitions[0].start_offset
        rest = await all_of(stream(client, "a").read(start=first))
        assert rest == ["x" * 200] * (100 - first)
        epoch, number = way.core.epoch, way.core.describe("_stream.a").number
        assert await all_of(stream(client, "a").read(position=f"{first}.{epoch}.{number}")) == rest


async def test_readers_of_a_deleted_stream_get_an_error(way: Way) -> None:
    async with way.open() as client:
        answer = stream(client, "a")
        await answer.append("one")
        got: list[Any] = []
        reading = asyncio.create_task(collect(stream(client, "a").read(), got))
        await until(lambda: got == ["one"])
        await answer.delete()
        with pytest.raises(errors.StreamGoneError, match="deleted before it had ended"):
            await reading


async def test_a_late_piece_does_not_bring_an_expired_stream_back(way: Way) -> None:
    async with way.open() as client:
        answer = stream(client, "a")
        await answer.append("one")
        await client.delete_topic("_stream.a")
        with pytest.raises(errors.TopicNotFoundError):
            await answer.append("two")
        with pytest.raises(errors.TopicNotFoundError):
            await client.publish("_stream.a", "two")
        assert await client.topics("_stream.>") == []


async def test_streams_are_left_out_of_patterns_that_do_not_name_them(way: Way) -> None:
    async with way.open() as client:
        async with client.subscribe(">", start="earliest") as everything:
            await written(client, "a")
            await client.publish("t", "seen")
            assert (await everything.next(PATIENCE_SECONDS)).text == "seen"
        assert [topic.name for topic in await client.topics()] == ["t"]
        (found,) = await client.topics("_stream.>")
        assert (found.name, found.settings.role) == ("_stream.a", "stream")
        assert (found.settings.durability, found.settings.expire_seconds) == ("memory", 3600)


@pytest.mark.parametrize("durability", ["memory", "os"])
async def test_streams_expire_after_their_last_piece_with_nobody_there(
    durability: Any, data: Any, broker_clock: BrokerClock
) -> None:
    way = Way("embedded", data)
    async with way.open() as client:
        await written(client, "long", durability=durability, ttl_seconds=100)
        await stream(client, "empty", durability=durability, ttl_seconds=100).open()
        answer = stream(client, "unfinished", durability=durability, ttl_seconds=100)
        await answer.append("one")
        await housekept(way)
        broker_clock.advance(50)
        await answer.append("two")
        broker_clock.advance(51)
        await housekept(way)
        assert [t.name for t in await client.topics("_stream.>")] == ["_stream.unfinished"]
        broker_clock.advance(50)
        await housekept(way)
        assert await client.topics("_stream.>") == []


async def housekept(way: Way) -> None:
    way.core.housekeeping()
    await until(lambda: not way.core._housekeeping._running)


async def test_a_stream_on_disk_is_read_on_and_expires_after_a_restart(
    data: Any, broker_clock: BrokerClock
) -> None:
    way = Way("embedded", data)
    async with way.open() as client:
        await written(client, "ended", durability="os", ttl_seconds=100)
        await client.stream("open", durability="os", ttl_seconds=1000).append("one")
        await client.stream("never", durability="os", ttl_seconds=100).open()
        reader = client.stream("ended").read()
        async for _ in reader:
            break
    broker_clock.advance(30)
    async with way.open() as client:
        assert await all_of(client.stream("ended").read(position=reader.position)) == TOKENS[1:]
        await client.stream("open", mode="existing").append("two")
        await housekept(way)
        broker_clock.advance(71)
        await housekept(way)
        names = [topic.name for topic in await client.topics("_stream.>")]
        assert names == ["_stream.never", "_stream.open"]
        broker_clock.advance(30)
        await housekept(way)
        assert [topic.name for topic in await client.topics("_stream.>")] == ["_stream.open"]


async def test_a_clock_that_jumps_expires_nothing(data: Any, broker_clock: BrokerClock) -> None:
    way = Way("embedded", data)
    async with way.open() as client:
        await written(client, "a", ttl_seconds=100)
        await housekept(way)
        broker_clock.now_us += 10_000_000_000
        await housekept(way)
        assert await all_of(client.stream("a").read()) == TOKENS


async def test_a_writer_and_its_readers_hear_of_a_restart_that_took_the_stream(data: Any) -> None:
    port = free_port()
    node = Node(data, fanlog.Config(listener=ListenerOptions(port=port)))
    node.start()
    node.listen()
    async with fanlog.connect(f"fanlog://127.0.0.1:{port}") as client:
        answer = client.stream("a")
        await answer.append("one")
        got: list[str] = []

        reading = asyncio.create_task(collect(client.stream("a").read(), got))
        await until(lambda: got == ["one"])
        await node.stop()
        node = Node(data, fanlog.Config(listener=ListenerOptions(port=port)))
        node.start()
        node.listen()
        with pytest.raises(errors.StreamGoneError):
            await asyncio.wait_for(reading, PATIENCE_SECONDS)
        with pytest.raises(errors.TopicNotFoundError):
            await answer.append("two")
        assert await client.topics("_stream.>") == []
    await node.stop()


async def test_an_ended_stream_costs_its_writer_nothing() -> None:
    async with fanlog.Broker() as client:
        await written(client, "warm-up")
        gc.collect()
        for number in range(200):
            await written(client, f"s{number}")
        assert client._publisher.topics == {}
        assert client._publisher._by_number == {}


@pytest.mark.parametrize("name", ["embedded", "networked"])
async def test_cancelled_readers_leave_nothing_behind(name: str, data: Any) -> None:
    way = Way(name, data)
    async with way.open() as client:
        await client.stream("a").append("one")
        readers = [asyncio.create_task(all_of(client.stream("a").read())) for _ in range(10)]
        partition = way.core.catalog.get("_stream.a").partitions[0]
        await until(lambda: partition.readers == 10)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await until(lambda: partition.readers == 0)
