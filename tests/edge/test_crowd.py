"""A crowd of browsers on two edges, one of which is killed under load: every one of them moves to
the other, and has the complete sequence in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tests.edge.edge_process import EdgeProcess
from tests.edge.stage import PATIENCE_SECONDS, broker_at, until
from tests.listeners.web.wire import encode_frame, handshake

CLIENTS = 2000
MESSAGES = 30
_PAUSE_SECONDS = 0.05


class Message(msgspec.Struct):
    offset: int


class Frame(msgspec.Struct):
    """What a client looks at."""

    type: str = ""
    position: str = ""
    messages: list[Message] = []
    ok: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(Frame).decode


class Browser(asyncio.Protocol):
    """A client that comes back with its position, to the next of its ports."""

    def __init__(self, ports: list[int], crowd: Crowd) -> None:
        self._ports = ports
        self._crowd = crowd
        self._buffer = b""
        self._open = False
        self._position = ""
        self._next = 0
        self._subscribed = False
        self.moves = -1
        self.faults: list[str] = []

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.moves += 1
            port = self._ports[self.moves % len(self._ports)]
            self._buffer, self._open = b"", False
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", port)
                return
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(handshake())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._crowd.over:
            self._crowd.later(self._again())

    async def _again(self) -> None:
        await asyncio.sleep(_PAUSE_SECONDS)
        await self.connect()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._open:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if b" 101 " not in head:
                # Too many at once: it was told to come later.
                self._transport.close()
                return
            self._open, self._buffer = True, rest
            wanted: dict[str, object] = {"op": "subscribe", "target": "load"}
            if self._position:
                wanted["positions"] = {"load/0": self._position}
            self._transport.write(encode_frame(1, msgspec.json.encode(wanted)))
        self._take_frames()

    def _take_frames(self) -> None:
        while len(self._buffer) >= 2:
            size, at = self._buffer[1], 2
            if size == 126:
                size, at = int.from_bytes(self._buffer[2:4], "big"), 4
            elif size == 127:
                size, at = int.from_bytes(self._buffer[2:10], "big"), 10
            if len(self._buffer) < at + size:
                return
            opcode, payload = self._buffer[0] & 15, self._buffer[at : at + size]
            self._buffer = self._buffer[at + size :]
            if opcode == 1:
                self._take(_decode(payload))

    def _take(self, frame: Frame) -> None:
        if frame.type == "messages":
            for message in frame.messages:
                if message.offset != self._next:
                    self.faults.append(f"got {message.offset}, not {self._next}")
                self._next = message.offset + 1
            self._position = frame.position
            if self._next >= MESSAGES:
                self._crowd.finished.add(self)
        elif frame.type == "gap" or frame.error:
            self.faults.append(bytes(frame.error).decode() or "a gap")
        elif frame.ok and not self._subscribed:
            self._subscribed = True
            found = msgspec.json.decode(frame.ok)["positions"]
            self._position = found["load/0"]
            self._crowd.ready += 1


class Crowd:
    def __init__(self) -> None:
        self.ready = 0
        self.finished: set[Browser] = set()
        self.over = False
        self._tasks: set[asyncio.Task[None]] = set()

    def later(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, browsers: list[Browser]) -> None:
        self.over = True
        for task in self._tasks:
            task.cancel()
        for browser in browsers:
            browser._transport.abort()
        await asyncio.sleep(0)


async def test_2000_browsers_on_two_edges_have_everything_after_one_is_killed(
    tmp_path: Path,
) -> None:
    async with broker_at() as broker:
        await broker.create_topic("load")
        url = f"fanlog://127.0.0.1:{broker.listen().port}"
        with (
            EdgeProcess(url, tmp_path / "one.log") as one,
            EdgeProcess(url, tmp_path / "other.log") as other,
        ):
            for edge in (one, other):
                await asyncio.to_thread(edge.wait)
            ports = [one.http_port, other.http_port]
            crowd = Crowd()
            browsers = [Browser(ports[i % 2 :] + ports[: i % 2], crowd) for i in range(CLIENTS)]
            for i in range(0, CLIENTS, 100):
                await asyncio.gather(*(browser.connect() for browser in browsers[i : i + 100]))
            await until(lambda: crowd.ready == CLIENTS)
            for i in range(MESSAGES):
                await broker.publish("load", str(i))
                if i == MESSAGES // 3:
                    one.kill()
                await asyncio.sleep(0.01)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await until(lambda: len(crowd.finished) == CLIENTS)
            await crowd.end(browsers)
            assert [b.faults for b in browsers if b.faults] == []
            assert sum(browser.moves > 0 for browser in browsers) >= CLIENTS // 2
