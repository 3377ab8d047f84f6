"""Nobody keeps what was taken from them, and nobody takes from others what they need to get in."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest

from fanlog.client.core.handshake import hello
from fanlog.config_limits import LimitOptions
from fanlog.edge.gate import EdgeGate
from fanlog.format import messages
from fanlog.format.frames import PREFIX, FrameKind, frame, message_frame
from fanlog.identity import Account, Login, Role, Rules
from fanlog.listeners.login_requests import HELLO_BYTES_MAX
from tests.edge.test_logins import Stage, stage
from tests.limits.limited import until
from tests.limits.test_redis_login import safe
from tests.listeners.peers import PATIENCE_SECONDS, Peer, one_message
from tests.listeners.test_login import guarded
from tests.listeners.web.guarded import PAGE
from tests.listeners.web.guarded import guarded as web


async def test_a_redis_client_does_not_keep_a_channel_under_another_name() -> None:
    async with safe() as broker:
        reader = broker.key("reader", subscribe=("secret",))
        other = broker.key("other", subscribe=("public",))
        talk = await _Talk.begin(broker.redis.port)
        await talk.say(f"HELLO 3 AUTH default {reader}", b"role")
        await talk.say("SUBSCRIBE secret", b"subscribe")
        await talk.say("AUTH " + other, b"may not read")
        talk.writer.close()
        await until(lambda: not broker.redis.pubsub.follower_count(b"secret", shard=False))


async def test_a_queued_redis_command_needs_the_permission_when_it_runs() -> None:
    async with safe() as broker:
        key = broker.key("operator", role=Role.ADMIN)
        talk = await _Talk.begin(broker.redis.port)
        await talk.say(f"AUTH {key}", b"+OK")
        await talk.say("MULTI", b"+OK")
        await talk.say("CONFIG GET *", b"QUEUED")
        known = broker.directory.keys["operator"]
        broker.directory.put(msgspec.structs.replace(known, rules=Rules(role=Role.VIEWER)))
        await talk.say("EXEC", b"-NOPERM")
        talk.writer.close()


class _Talk(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def begin(cls, port: int) -> _Talk:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def say(self, command: str, answer: bytes) -> None:
        """Sends a command, and waits for an answer with this in it."""
        self.writer.write(command.encode() + b"\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.reader.readuntil(answer)


async def test_a_peer_whose_login_waits_fills_no_memory() -> None:
    async with guarded() as served:
        let_go = asyncio.Event()

        class Slow:
            async def verify(self, token: str, /) -> Account | None:
                await let_go.wait()
                return None

            def renew(self, account: Account, /) -> Account | None:
                return account

        served.gate.verifiers.append(Slow())
        peer = await served.dial()
        await peer.send(hello("x", Login(token="t")))
        size = served.listener.options.frame_bytes_max
        begun = PREFIX.pack(size, int(FrameKind.PING)) + bytes(size - 100)
        sending = asyncio.create_task(_try_send(peer, begun))
        [connection] = list(served.listener._connections)  # pyright: ignore[reportPrivateUsage]
        # What one read brings is kept, and then no more is read.
        await until(lambda: connection.paused or sending.done())
        session: Any = connection.session
        assert session._cutter.kept_bytes <= served.listener.options.receive_bytes + HELLO_BYTES_MAX
        assert connection.paused
        let_go.set()
        await sending


async def _try_send(peer: Peer, data: bytes) -> None:
    with suppress(OSError, TimeoutError):
        await peer.send(data)


async def _at_edge(here: Stage, key: str) -> Peer:
    """A peer that has logged in at the edge, and asked nothing upstream yet."""
    host, _, port = here.url.removeprefix("fanlog://").partition(":")
    peer = Peer(socket.create_connection((host, int(port))))
    peer.sock.setblocking(False)
    await peer.send(hello("x", Login(key=key)))
    await peer.expect(FrameKind.WELCOME)
    return peer


def _counted(here: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses for which the broker counts wrong logins from now on."""
    lockout = here.broker.node.core.metering.logins.lockout
    counted: list[str] = []

    def count(address: str, now_us: int, *, name: str = "", user: str = "") -> None:
        counted.append(address)

    monkeypatch.setattr(lockout, "failed", count)
    return counted


_LIST = message_frame(FrameKind.LIST_TOPICS, messages.ListTopics(), request=1)


async def test_wrong_logins_of_an_edges_client_do_not_lock_the_edge_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as here:
        peer = await _at_edge(here, here.broker.add_key("shop"))
        counted = _counted(here, monkeypatch)
        # It has asked something upstream, so that it is connected there too.
        await peer.send(_LIST)
        await peer.expect(FrameKind.OK)
        for request in range(2, 5):
            wrong = Login(user="nobody", password=str(request))
            await peer.send(message_frame(FrameKind.LOGIN, wrong, request=request))
            assert (await peer.expect(FrameKind.ERROR)).request == request
        host, port = peer.sock.getsockname()
        assert counted == [f"{host}:{port}"] * 3
        peer.sock.close()


async def test_a_key_that_the_edge_believes_in_for_a_moment_does_not_lock_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as here:
        key = here.broker.add_key("shop")
        peers = [await _at_edge(here, key) for _ in range(3)]
        counted = _counted(here, monkeypatch)

        async def not_yet(self: object) -> bool:
            return False

        monkeypatch.setattr(EdgeGate, "look", not_yet)
        here.broker.directory.remove(here.broker.directory.keys["shop"])
        for peer in peers:
            await peer.send(_LIST)
            assert (await peer.expect(FrameKind.ERROR)).failure.code == "unauthenticated"
        own = [peer.sock.getsockname() for peer in peers]
        assert counted == [f"{host}:{port}" for host, port in own]
        for peer in peers:
            peer.sock.close()


async def test_one_account_does_not_use_up_all_sessions() -> None:
    async with web(sessions_max=5) as here:
        await here.user("ann", "correct horse", Role.ADMIN)
        key = here.key("robot", Role.OBSERVER)
        cookies = [await here.log_in(key=key) for _ in range(10)]
        # Its oldest end, and others still get in.
        await here.log_in(user="ann", password="correct horse")
        page = {"Sec_Fetch_Site": "same-origin"}
        assert (await here.ask("GET", "/v1/whoami", Cookie=cookies[-1], **page))[0] == 200
        assert (await here.ask("GET", "/v1/whoami", Cookie=cookies[0], **page))[0] == 401


async def test_what_was_staged_needs_the_permission_when_it_is_committed() -> None:
    async with guarded() as served:
        topic = served.node.core.create_topic("orders", {"durability": "memory"})
        key = served.add_key("shop", Rules(publish=("orders",)))
        peer = await served.dial()
        await peer.send(hello("x", Login(key=key)))
        await peer.expect(FrameKind.WELCOME)
        begin = messages.BeginTransaction()
        await peer.send(message_frame(FrameKind.BEGIN_TRANSACTION, begin, request=1))
        begun = (await peer.expect(FrameKind.OK)).read(messages.TransactionBegun)
        staged = bytes.fromhex(begun.ticket) + one_message(topic.number)
        await peer.send(frame(FrameKind.STAGE, staged, request=2))
        await peer.expect(FrameKind.OK)
        served.change("shop", rules=Rules(publish=("other",)))
        commit = messages.CommitTransaction(begun.ticket)
        await peer.send(message_frame(FrameKind.COMMIT_TRANSACTION, commit, request=3))
        assert (await peer.expect(FrameKind.ERROR)).failure.code == "forbidden"
        assert topic.partitions[0].visible_end == 0


async def test_nobody_guesses_a_password_with_a_session_that_was_left_open() -> None:
    async with web(limits=LimitOptions(wrong_logins_max=2)) as here:
        await here.user("ann", "correct horse")
        shown = {"Cookie": await here.log_in(user="ann", password="correct horse"), **PAGE}
        body = {"password": "battery staple", "old_password": "wrong"}
        said = [
            (await here.ask("POST", "/v1/users/ann/password", body=body, **shown))[0]
            for _ in range(5)
        ]
        assert said[:3] == [401] * 3
        assert 429 in said[3:]
