"""Many connections: the limit is told, and thousands that say nothing are no burden."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import sys
from typing import cast

import pytest

from fanlog.client.core.handshake import hello
from fanlog.errors import TooManyConnectionsError
from fanlog.format.frames import FrameKind
from tests.listeners.peers import PATIENCE_SECONDS, serving

CROWD = 10_000
SPARE_FILES = 500
# The peers live in a process of their own: both ends would not fit into one process's files.
PEERS = """
import resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, count = int(sys.argv[1]), int(sys.argv[2])
peers = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(count)]
print("here", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("talks_first", [False, True])
async def test_a_connection_past_the_limit_is_told_so(talks_first: bool) -> None:
    async with serving(connections_max=2) as served:
        peers = [await served.greeted() for _ in range(2)]
        for _ in range(10):
            late = await served.dial()
            if talks_first:
                await late.send(hello("late"))
            failure = await late.fault()
            assert failure.code == "too_many_connections"
            assert "connections_max" in failure.message
        for peer in peers:
            assert (await peer.ask(FrameKind.PING)).kind is FrameKind.PONG
        peers[0].close()
        await served.until(lambda: served.connections == 1)
        await served.greeted()
        peers[1].close()
        await served.until(lambda: served.connections == 1)


async def test_a_client_past_the_limit_raises_what_it_was_told() -> None:
    async with serving(connections_max=1) as served:
        peer = await served.greeted()
        with pytest.raises(TooManyConnectionsError):
            async with served.client():
                pass
        peer.close()
        await served.until(lambda: served.connections == 0)


class Exhausted:
    """A listening socket whose process has no descriptor for one more, so many times."""

    def __init__(self, sock: socket.socket, number: int, times: int) -> None:
        self._sock = sock
        self._number = number
        self.left = times

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.left:
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._sock.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_a_listener_without_descriptors_pauses_says_so_once_and_goes_on(
    caplog: pytest.LogCaptureFixture, number: int
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        sock = served.listener._sock
        assert sock is not None
        exhausted = Exhausted(sock, number, 3)
        served.listener._sock = cast("socket.socket", exhausted)
        late = await served.dial()
        # Nothing spins meanwhile: one look at the socket, and others have their turns.
        await peer.frames_until_pong()
        await peer.frames_until_pong()
        assert exhausted.left >= 1
        await late.greet()
        assert exhausted.left == 0
    said = [r.getMessage() for r in caplog.records if "accept" in r.getMessage()]
    assert len(said) == 2
    assert os.strerror(number) in said[0]
    assert said[1].endswith("are accepted again")


async def test_connections_of_all_listeners_together_are_what_the_open_files_allow() -> None:
    async with serving() as served:
        redis = served.node.listen_redis()
        served.node._admission.connections_max = 3
        peers = [await served.greeted(), await served.greeted()]
        client = await served.dial(port=redis.port)
        await client.send(b"PING\r\n")
        assert await client.recv() == b"+PONG\r\n"
        failure = await (await served.dial()).fault()
        assert failure.code == "too_many_connections"
        assert "the broker has 3" in failure.message
        assert "open files" in failure.message
        late = await served.dial(port=redis.port)
        said = await late.recv()
        assert said.startswith(b"-ERR max number of clients reached: ")
        assert b"open files" in said
        peers[0].close()
        await served.until(lambda: served.connections == 2)
        peers.append(await served.greeted())
        for peer in (*peers, client):
            peer.close()
        await served.until(lambda: served.connections == 0)


async def test_ten_thousand_connections_that_say_nothing_do_not_disturb_a_client() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < CROWD + SPARE_FILES:
        reason = f"a process may open {before[1]} files here; {CROWD + SPARE_FILES} are needed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    wanted = max(before[0], CROWD + SPARE_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    try:
        await crowd()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def crowd() -> None:
    async with serving(hello_timeout_seconds=600) as served:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PEERS,
            str(served.port),
            str(CROWD),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS)
            assert said == b"here\n"
            await served.until(lambda: served.connections == CROWD)
            for _ in range(3):
                await served.check_works()
        finally:
            process.stdin.close()
            await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
        await served.until(lambda: served.connections == 0)
