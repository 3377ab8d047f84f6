"""The Unix socket of a broker with workers: whoever can't introduce himself is cut."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import ConfigError, FormatError, UnauthenticatedError
from fanlog.format.introduction import (
    INTRODUCTION_HEAD,
    SECRET_BYTES,
    Introduction,
    introduction_rest,
    read_introduction,
    write_introduction,
)
from fanlog.listeners import workers_socket
from fanlog.listeners.workers_socket import WorkersSocket

PATIENCE_SECONDS = 60.0
SECRET = secrets.token_bytes(SECRET_BYTES)
CLIENT = Introduction("native", "127.0.0.1:50312")


class Entrance:
    """An open socket, and what came in."""

    def __init__(self, opened: WorkersSocket) -> None:
        self.opened = opened
        self.let_in: list[tuple[socket.socket, Introduction]] = []

    async def dial(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(self.opened.path))
        return sock

    async def says_nothing(self, sock: socket.socket) -> bool:
        """Whether the connection is cut, without a word."""
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.sock_recv(sock, 100), PATIENCE_SECONDS) == b""
        except ConnectionResetError:
            return True


@asynccontextmanager
async def entrance() -> AsyncIterator[Entrance]:
    with tempfile.TemporaryDirectory() as folder:
        entered: list[tuple[socket.socket, Introduction]] = []
        opened = WorkersSocket(
            Path(folder) / "s", SECRET, lambda sock, who: entered.append((sock, who))
        )
        opened.open()
        found = Entrance(opened)
        found.let_in = entered
        try:
            yield found
        finally:
            opened.close()
            for sock, _ in entered:
                sock.close()


async def until_let_in(found: Entrance, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found.let_in) < count:  # noqa: ASYNC110 - a callback fills it
            await asyncio.sleep(0.01)


async def test_a_worker_is_let_in_with_what_it_says_and_not_a_byte_more_is_read() -> None:
    async with entrance() as found:
        sock = await found.dial()
        sock.send(write_introduction(CLIENT, SECRET) + b"HELLO")
        await until_let_in(found, 1)
        handed, introduction = found.let_in[0]
        assert introduction == CLIENT
        assert handed.recv(100) == b"HELLO"
        sock.close()


async def test_an_introduction_may_come_byte_by_byte() -> None:
    async with entrance() as found:
        sock = await found.dial()
        for byte in write_introduction(CLIENT, SECRET):
            sock.send(bytes([byte]))
            await asyncio.sleep(0)
        await until_let_in(found, 1)
        assert found.let_in[0][1] == CLIENT
        sock.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
        secrets.token_bytes(300),
        write_introduction(CLIENT, bytes(SECRET_BYTES)),
        write_introduction(CLIENT, SECRET)[:-3] + b"\xc1\xc1\xc1",
    ],
    ids=["http", "random", "wrong secret", "damaged"],
)
async def test_garbage_and_wrong_secrets_are_cut_and_others_still_come_in(said: bytes) -> None:
    async with entrance() as found:
        sock = await found.dial()
        sock.send(said)
        assert await found.says_nothing(sock)
        sock.close()
        other = await found.dial()
        other.send(write_introduction(CLIENT, SECRET))
        await until_let_in(found, 1)
        other.close()


async def test_who_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_socket, "_PATIENCE_SECONDS", 0.05)
    async with entrance() as found:
        sock = await found.dial()
        assert await found.says_nothing(sock)
        sock.close()


async def test_the_socket_is_for_its_user_alone_and_goes_with_its_owner() -> None:
    async with entrance() as found:
        mode = os.stat(found.opened.path).st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not found.opened.path.exists()


async def test_a_socket_that_a_killed_broker_left_is_replaced(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        again = WorkersSocket(path, SECRET, lambda sock, who: None)
        again.open()
        again.close()


async def test_a_folder_where_no_socket_can_be_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run without --workers"):
        WorkersSocket(tmp_path / "no" / "s", SECRET, lambda sock, who: None).open()


def test_an_introduction_is_read_as_it_was_written() -> None:
    data = write_introduction(CLIENT, SECRET)
    head, rest = data[: INTRODUCTION_HEAD.size], data[INTRODUCTION_HEAD.size :]
    assert introduction_rest(head, SECRET) == len(rest)
    assert read_introduction(rest) == CLIENT
    with pytest.raises(UnauthenticatedError):
        introduction_rest(head, bytes(SECRET_BYTES))
    with pytest.raises(FormatError):
        introduction_rest(b"X" + head[1:], SECRET)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_introduction_or_an_error(data: bytes) -> None:
    with suppress(FormatError):
        read_introduction(data)
