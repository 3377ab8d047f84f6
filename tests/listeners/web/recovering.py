"""Clients that are cut at random moments, and check that nothing is missing and nothing comes
twice."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from typing import Any
from urllib.parse import quote

from fanlog.format.batch import split_batches
from tests import secured
from tests.listeners.web.wire import BINARY, TEXT, encode_frame, handshake

Place = tuple[str, int]


class Cut(Exception):
    """The connection was cut, as it was meant to be."""


class Follower:
    """What a client knows: the next offset of each partition, and the positions to hand back."""

    def __init__(self, target: str, chance: random.Random, *, binary: bool = False) -> None:
        self.target = target
        self.chance = chance
        self.binary = binary
        self.next: dict[Place, int] = {}
        self.gaps: list[Any] = []
        self.until: dict[Place, int] | None = None
        self.cycles = 0

    async def run(self, host: str, port: int) -> None:
        """One connection, which is cut after some bytes. With `until`, it ends there instead."""
        self.cycles += 1
        reader, writer = await asyncio.open_connection(
            host, port, limit=1 << 24, ssl=secured.client_tls()
        )
        left = self.chance.choice((200, 400, 800) if self.binary else (200, 500, 2000, 8000))
        try:
            writer.write(self.hello())
            buffer = b""
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.ask())
            while not self.is_done():
                data = await reader.read(self.chance.randint(1, 4000))
                if not data:
                    raise ConnectionResetError
                buffer = self.take(buffer + data)
                left -= len(data)
                if left < 0 and self.until is None:
                    raise Cut
        finally:
            writer.transport.abort()

    def is_done(self) -> bool:
        if self.until is None:
            return False
        return all(self.next.get(place, -1) >= end for place, end in self.until.items())

    def see(self, place: Place, offset: int) -> None:
        """A message."""
        expected = self.next.get(place, offset)
        assert offset == expected, f"{place}: {offset} came, {expected} should have"
        self.next[place] = offset + 1

    def begin(self, place: Place, offset: int) -> None:
        """The server says where a partition begins."""
        assert self.next.setdefault(place, offset) == offset

    def hello(self) -> bytes:
        raise NotImplementedError

    def ask(self) -> bytes:
        raise NotImplementedError

    def take(self, data: bytes) -> bytes:
        """Takes what is whole, and returns the rest."""
        raise NotImplementedError


class SocketFollower(Follower):
    """By WebSocket."""

    def __init__(self, target: str, chance: random.Random, *, binary: bool = False) -> None:
        super().__init__(target, chance, binary=binary)
        self.positions: dict[str, str] | None = None
        self.names: dict[int, str] = {}

    def hello(self) -> bytes:
        chosen = "fanlog.binary" if self.binary else "fanlog.json"
        return handshake(Sec_WebSocket_Protocol=chosen)

    def ask(self) -> bytes:
        asked: dict[str, Any] = {"op": "subscribe", "target": self.target, "start": "earliest"}
        if self.positions is not None:
            asked["positions"] = self.positions
        return encode_frame(TEXT, json.dumps(asked).encode())

    def take(self, data: bytes) -> bytes:
        at = 0
        while len(data) - at >= 2:
            opcode, size = data[at] & 0x0F, data[at + 1]
            begin = at + 2
            if size == 126:
                if len(data) < begin + 2:
                    break
                (size,) = struct.unpack_from(">H", data, begin)
                begin += 2
            elif size == 127:
                if len(data) < begin + 8:
                    break
                (size,) = struct.unpack_from(">Q", data, begin)
                begin += 8
            if len(data) < begin + size:
                break
            at = begin + size
            if opcode == TEXT:
                self._frame(json.loads(data[begin:at]))
            elif opcode == BINARY:
                self._batches(data[begin:at])
        return data[at:]

    def _frame(self, frame: Any) -> None:
        if "error" in frame:
            raise AssertionError(frame)
        told = frame.get("ok") or frame
        if told is not frame or frame["type"] == "joined":
            self.positions = {**(self.positions or {}), **told["positions"]}
            for number, name in told.get("numbers", {}).items():
                self.names[int(number)] = name
            for where, position in told["positions"].items():
                topic, _, index = where.rpartition("/")
                self.begin((topic, int(index)), int(position.split(".")[0]))
        elif frame["type"] == "messages":
            place = frame["topic"], frame["partition"]
            for message in frame["messages"]:
                self.see(place, message["offset"])
            assert self.positions is not None
            self.positions[f"{place[0]}/{place[1]}"] = frame["position"]
            assert int(frame["position"].split(".")[0]) == self.next[place]
        elif frame["type"] == "gap":
            self.gaps.append(frame)
            place = frame["topic"], frame["partition"]
            self.next[place] = int(frame["to"].split(".")[0])
            assert self.positions is not None
            self.positions[f"{place[0]}/{place[1]}"] = frame["to"]

    def _batches(self, data: bytes) -> None:
        size = data[0]
        assert data[1 : 1 + size].decode() == self.target
        batches = data[1 + size :]
        for _, header in split_batches(batches):
            place = self.names[header.topic], header.partition
            # A batch comes whole: the client leaves out what it has.
            for offset in range(header.base_offset, header.next_offset):
                if offset >= self.next.get(place, 0):
                    self.see(place, offset)
            assert self.positions is not None
            position = f"{header.next_offset}.{header.leader_epoch}.{header.topic}"
            self.positions[f"{place[0]}/{place[1]}"] = position


class EventFollower(Follower):
    """By server-sent events."""

    def __init__(self, target: str, chance: random.Random, *, binary: bool = False) -> None:
        super().__init__(target, chance, binary=binary)
        self.id = ""

    def hello(self) -> bytes:
        path = f"/v1/stream?topic={quote(self.target)}&start=earliest"
        last = f"Last-Event-ID: {self.id}\r\n" if self.id else ""
        shown = "".join(f"{name}: {value}\r\n" for name, value in secured.headers().items())
        return f"GET {path} HTTP/1.1\r\nHost: x\r\n{shown}{last}\r\n".encode()

    def ask(self) -> bytes:
        return b""

    def take(self, data: bytes) -> bytes:
        *blocks, rest = data.split(b"\n\n")
        for block in blocks:
            fields = dict(
                line.split(": ", 1) for line in block.decode().split("\n") if ": " in line
            )
            if "id" in fields:
                self.id = fields["id"]
            if "data" in fields:
                self._event(fields.get("event", ""), json.loads(fields["data"]))
        return rest

    def _event(self, kind: str, content: Any) -> None:
        if not kind:
            self.see((content["topic"], content["partition"]), content["offset"])
        elif kind in ("subscribed", "joined"):
            for where, position in content["positions"].items():
                topic, _, index = where.rpartition("/")
                self.begin((topic, int(index)), int(position.split(".")[0]))
        elif kind == "gap":
            self.gaps.append(content)
            self.next[content["topic"], content["partition"]] = int(content["to"].split(".")[0])
        elif kind == "error":
            raise AssertionError(content)
