"""Logging in over the native protocol: nothing before it, and nothing after it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fanlog
from fanlog.client.core import timing
from fanlog.client.core.handshake import hello
from fanlog.client.request_connection import RequestConnection
from fanlog.config import ClientOptions, Config, ListenerOptions, RedisOptions
from fanlog.config_security import SecurityOptions
from fanlog.config_web import WebOptions
from fanlog.errors import (
    ConfigError,
    ForbiddenError,
    InvalidArgumentError,
    UnauthenticatedError,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind, frame, message_frame
from fanlog.identity import Account, Login, Role, Rules
from fanlog.node import LoopRuntime, Node
from fanlog.security import passwords
from fanlog.security.directory import Directory, KeyEntry, UserEntry
from fanlog.security.keys import digest_of, make_key, maybe_parse
from tests.awaited import awaited
from tests.listeners.peers import HOST, PATIENCE_SECONDS, Serving, one_message

SECOND_US = 1_000_000


class Runtime(LoopRuntime):
    """The wall clock can be set."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


class Guarded(Serving):
    """A broker that asks for a login."""

    def __init__(self, node: Node, runtime: Runtime) -> None:
        super().__init__(node)
        assert node.security is not None
        self.gate = node.security
        self.directory: Directory = node.security.directory
        self.runtime = runtime

    def add_key(self, name: str = "shop", rules: Rules | None = None, **more: Any) -> str:
        text = make_key()
        parsed = maybe_parse(text)
        assert parsed is not None
        entry = KeyEntry(
            name=name,
            id=parsed.id,
            digest=digest_of(parsed.secret),
            rules=rules or Rules(publish=(">",), subscribe=(">",), groups=(">",), queues=(">",)),
            **more,
        )
        self.directory.put(entry)
        return text

    def change(self, name: str, **changes: Any) -> None:
        self.directory.put(msgspec.structs.replace(self.directory.keys[name], **changes))

    @property
    def url(self) -> str:
        return f"fanlog://{self.listener.host}:{self.listener.port}"


@asynccontextmanager
async def guarded(folder: Path | None = None) -> AsyncIterator[Guarded]:
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0),
        redis=RedisOptions(host=HOST, port=0),
        web=WebOptions(host=HOST, port=0),
        security=SecurityOptions(auth=True),
    )
    runtime = Runtime()
    node = Node(folder, config, runtime)
    node.start()
    served = Guarded(node, runtime)
    try:
        yield served
    finally:
        served.close_peers()
        await node.stop()


async def test_nothing_happens_before_a_login() -> None:
    async with guarded() as served:
        topic = served.node.core.create_topic("t", {"durability": "memory"})
        key = served.add_key()
        behind = one_message(topic.number) + message_frame(
            FrameKind.CREATE_TOPIC, messages.CreateTopic("made"), request=3
        )
        wrong = [None, Login(), Login(key=make_key()), Login(user="x", password="y")]
        wrong += [Login(token="a.b.c"), Login(key=key[:-1] + ("A" if key[-1] != "A" else "B"))]
        for login in wrong:
            peer = await served.dial()
            await peer.send(hello("x", login) + behind)
            frames = await peer.rest()
            assert [one.kind for one in frames] == [FrameKind.ERROR]
            assert frames[0].failure.code == "unauthenticated"
        for first in (
            behind,
            frame(FrameKind.PING),
            message_frame(FrameKind.LOGIN, Login(key=key)),
        ):
            peer = await served.dial()
            await peer.send(first)
            assert (await peer.fault()).code == "bad_magic"
        assert topic.partitions[0].visible_end == 0
        assert served.node.core.catalog.find("made") is None


async def test_frames_behind_a_hello_wait_for_its_login() -> None:
    async with guarded() as served:
        topic = served.node.core.create_topic("t", {"durability": "memory"})
        let_go = asyncio.Event()

        class Slow:
            async def verify(self, token: str, /) -> Account | None:
                await let_go.wait()
                return Account(name="ann", kind="token", rules=Rules(publish=("t",)))

            def renew(self, account: Account, /) -> Account | None:
                return account

        served.gate.verifiers.append(Slow())
        peer, gone = await served.dial(), await served.dial()
        await peer.send(hello("x", Login(token="t")))
        await peer.send(one_message(topic.number))
        await gone.send(hello("x", Login(token="t")) + one_message(topic.number))
        await served.until(lambda: served.node.core.connections == 2)
        gone.close()
        for _ in range(10):
            await asyncio.sleep(0)
        assert topic.partitions[0].visible_end == 0
        let_go.set()
        welcome = (await peer.expect(FrameKind.WELCOME)).read(messages.Welcome)
        assert welcome.user == "ann"
        await peer.expect(FrameKind.ACK)
        await served.until(lambda: served.node.core.connections == 1)
        # Of the one that went away at once, what it had sent counts or not, as it always does.
        assert topic.partitions[0].visible_end in (1, 2)


async def test_a_hello_may_not_be_large() -> None:
    async with guarded() as served:
        peer = await served.dial()
        await peer.send(hello("x" * 100_000)[:70_000])
        assert "claims" in (await peer.fault()).message


async def test_a_client_logs_in_with_a_key_a_file_a_password_or_an_address(tmp_path: Path) -> None:
    async with guarded() as served:
        key = served.add_key()
        kept = await asyncio.to_thread(passwords.hash_password, "correct horse")
        served.directory.put(UserEntry(name="ann", rules=Rules(publish=("t",)), password=kept))
        file, word = tmp_path / "key", tmp_path / "word"
        file.write_text(key + "\n")
        word.write_text("correct horse\n")
        host = served.url.removeprefix("fanlog://")
        ways: list[tuple[str, dict[str, Any]]] = [
            (served.url, {"key": key}),
            (served.url, {"key_file": str(file)}),
            (served.url, {"token": key}),
            (served.url, {"token": lambda: key}),
            (served.url, {"user": "ann", "password": "correct horse"}),
            (served.url, {"user": "ann", "password_file": str(word)}),
            (f"fanlog://:{key}@{host}", {}),
            (f"fanlog://ann:correct%20horse@{host}", {}),
        ]
        for url, options in ways:
            async with fanlog.connect(url, **options) as client:
                await client.publish("t", b"x")
                assert client.welcome is not None
                assert client.welcome.user in ("shop", "ann")
        assert "correct" not in repr(ClientOptions(user="ann", password="correct horse"))


async def test_the_blocking_and_the_plain_client_log_in() -> None:
    async with guarded() as served:
        key = served.add_key()

        def blocking() -> None:
            with fanlog.sync.connect(served.url, key=key) as client:
                client.publish("t", b"x")
            with pytest.raises(UnauthenticatedError):
                fanlog.sync.connect(served.url)
            with RequestConnection(served.url, ClientOptions(key=key)) as plain:
                wanted = messages.OpenTopic("t")
                assert plain.ask(FrameKind.OPEN_TOPIC, wanted, messages.TopicOpened).number
            for options in (ClientOptions(), ClientOptions(key=make_key())):
                with pytest.raises(UnauthenticatedError):
                    RequestConnection(served.url, options, patient=True)

        await asyncio.to_thread(blocking)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "a", "user": "b"},
        {"key": "a", "token": "b"},
        {"password": "a"},
        {"user": "a"},
        {"token": 7},
    ],
    ids=range(5),
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        fanlog.connect("fanlog://127.0.0.1:1", **options)


async def test_a_file_that_is_no_secret_is_named_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for content in (b"", b"fl_x\nfl_y", b"\xff\xfe", b"x" * 100_000):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="key_file") as fault:
            await fanlog.connect("fanlog://127.0.0.1:1", key_file=str(file))
        assert "fl_" not in str(fault.value)
    with pytest.raises(ConfigError, match="No such file"):
        await fanlog.connect("fanlog://127.0.0.1:1", key_file=str(tmp_path / "none"))


async def test_a_wrong_login_is_an_error_that_says_what_to_do() -> None:
    async with guarded() as served:
        with pytest.raises(UnauthenticatedError, match="FANLOG_KEY"):
            await fanlog.connect(served.url, wait_seconds=60)
        with pytest.raises(UnauthenticatedError, match="ask the operator"):
            await fanlog.connect(served.url, key=make_key(), wait_seconds=60)


async def test_a_revoked_key_is_cut_off_and_does_not_come_back() -> None:
    async with guarded() as served:
        key = served.add_key()
        other = await fanlog.connect(served.url, key=served.add_key("other"))
        client = await fanlog.connect(served.url, key=key)
        reader = client.subscribe("t")
        await client.publish("t", b"x")
        publishing = asyncio.create_task(_publish_until_refused(client))
        failures = served.gate.failures
        served.directory.remove(served.directory.keys["shop"])
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(UnauthenticatedError):
                await publishing
            with pytest.raises(UnauthenticatedError):
                await _read_until_refused(reader)
        assert client.state == "closed"
        # It tried once, and gave up.
        assert served.gate.failures == failures + 1
        await other.publish("t", b"y")
        await client.close()
        await other.close()


async def _read_until_refused(reader: fanlog.Subscription) -> None:
    while True:
        await reader.next(PATIENCE_SECONDS)


async def _publish_until_refused(client: fanlog.Client) -> None:
    while True:
        await client.publish("t", b"x")


async def test_a_raw_peer_with_a_revoked_key_gets_nothing_more() -> None:
    async with guarded() as served:
        topic = served.node.core.create_topic("t", {"durability": "memory"})
        peer = await served.dial()
        await peer.send(hello("x", Login(key=served.add_key())))
        await peer.expect(FrameKind.WELCOME)
        await peer.ask(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), aux=1)
        served.directory.remove(served.directory.keys["shop"])
        # In the same turn: before the peer has read a byte.
        assert not topic.partitions[0].readers
        fault = await peer.fault()
        assert (fault.code, "revoked" in fault.message) == ("unauthenticated", True)


async def test_an_account_that_expires_is_cut_off() -> None:
    async with guarded() as served:
        expires_us = served.runtime.now_us() + 3600 * SECOND_US
        peer = await served.dial()
        await peer.send(hello("x", Login(key=served.add_key(expires_us=expires_us))))
        welcome = (await peer.expect(FrameKind.WELCOME)).read(messages.Welcome)
        assert 3000 < welcome.expires_seconds <= 3600
        served.node.attend()
        await peer.frames_until_pong()
        served.runtime.ahead_us = 3602 * SECOND_US
        served.node.attend()
        assert (await peer.fault()).code == "unauthenticated"


async def test_a_key_that_is_to_expire_sooner_cuts_off_who_is_there() -> None:
    async with guarded() as served:
        peer = await served.dial()
        await peer.send(hello("x", Login(key=served.add_key())))
        await peer.expect(FrameKind.WELCOME)
        served.change("shop", expires_us=served.runtime.now_us() + 3600 * SECOND_US)
        await peer.frames_until_pong()
        served.runtime.ahead_us = 3602 * SECOND_US
        served.node.attend()
        assert (await peer.fault()).code == "unauthenticated"


async def test_an_observer_sees_no_key_of_a_message() -> None:
    async with guarded() as served:
        every = Rules(publish=(">",), subscribe=(">",))
        async with fanlog.connect(served.url, key=served.add_key("all", every)) as client:
            await client.publish("t", b"x", key="secret", delay_seconds=3600)
            observer = served.add_key("observer", Rules(role=Role.OBSERVER))
            async with fanlog.connect(served.url, key=observer) as watching:
                assert [one.key async for one in watching.scheduled()] == [None]
                with pytest.raises(ForbiddenError):
                    await watching.subscribe("t").next(PATIENCE_SECONDS)
            assert [one.key async for one in client.scheduled()] == [b"secret"]


async def test_changed_rules_hold_for_what_is_open() -> None:
    async with guarded() as served:
        core = served.node.core
        for name in ("a", "b"):
            core.create_topic(name, {"durability": "memory"})
        async with fanlog.connect(served.url, key=served.add_key()) as client:
            kept, ended = client.subscribe("a"), client.subscribe("b")
            member = client.consume("b", group="g")
            worker = client.work("b", queue="q")
            pattern = client.subscribe(">")
            for follower in (kept, ended, member, worker, pattern):
                await follower.start() if hasattr(follower, "start") else None
            await client.publish("b", b"x")
            assert (await ended.next(PATIENCE_SECONDS)).value == b"x"
            assert (await member.next(PATIENCE_SECONDS)).value == b"x"
            served.change("shop", rules=Rules(publish=("a",), subscribe=("a",)))
            with pytest.raises(ForbiddenError):
                await ended.next(PATIENCE_SECONDS)
            with pytest.raises(ForbiddenError):
                await member.next(PATIENCE_SECONDS)
            with pytest.raises(ForbiddenError):
                await client.publish("b", b"x")
            await client.publish("a", b"y")
            assert (await kept.next(PATIENCE_SECONDS)).value == b"y"
            assert core.catalog.get("b").partitions[0].readers == 0


async def test_a_fetch_that_waits_gets_nothing_after_its_permission_is_gone() -> None:
    async with guarded() as served:
        topic = served.node.core.create_topic("t", {"durability": "memory"})
        writer = await served.dial()
        await writer.send(hello("w", Login(key=served.add_key("writer"))))
        await writer.expect(FrameKind.WELCOME)
        peer = await served.dial()
        await peer.send(hello("x", Login(key=served.add_key())))
        await peer.expect(FrameKind.WELCOME)
        wanted = messages.Fetch(topic.number, 0, 0, wait_ms=30_000)
        asking = asyncio.create_task(peer.ask(FrameKind.FETCH, wanted))
        await served.until(lambda: awaited(topic.partitions[0]))
        served.change("shop", rules=Rules(publish=("t",)))
        await writer.publish(one_message(topic.number))
        assert (await asking).failure.code == "forbidden"


async def test_a_token_is_refreshed_without_a_disconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    # Soon, and long before it is over.
    monkeypatch.setattr(timing, "_REFRESH_SHARE", 0.001)
    async with guarded() as served:
        given: list[str] = []

        class Tokens:
            async def verify(self, token: str, /) -> Account | None:
                user, _, number = token.partition(":")
                seconds = 300 if number == "1" else 3_600_000
                expires_us = served.runtime.now_us() + seconds * SECOND_US
                return Account(
                    name=user,
                    kind="token",
                    rules=Rules(publish=(">",), subscribe=(">",)),
                    expires_us=expires_us,
                )

            def renew(self, account: Account, /) -> Account | None:
                return account

        async def fresh() -> str:
            given.append(f"ann:{len(given) + 1}")
            return given[-1]

        served.gate.verifiers.append(Tokens())
        async with (
            fanlog.connect(served.url, token=fresh) as client,
            client.subscribe("t") as reader,
        ):
            await served.until(lambda: len(given) == 2)
            await served.until(lambda: served.gate.logins == 2)
            await client.publish("t", b"x")
            assert (await reader.next(PATIENCE_SECONDS)).value == b"x"
            assert client.reconnects == 0
            peer = await served.dial()
            await peer.send(hello("x", Login(token="bob:9")))
            await peer.expect(FrameKind.WELCOME)
            other = await peer.ask(FrameKind.LOGIN, Login(token="ann:9"))
            assert other.failure.code == "invalid_argument"
            again = await peer.ask(FrameKind.LOGIN, Login(token="bob:9"))
            assert again.read(messages.LoggedIn).user == "bob"
            wrong = await peer.ask(FrameKind.LOGIN, Login(key=make_key()))
            assert wrong.failure.code == "unauthenticated"
            await peer.frames_until_pong()


async def test_a_reconnect_shows_a_fresh_token(tmp_path: Path) -> None:
    async with guarded() as served:
        file = tmp_path / "key"
        file.write_text(served.add_key())
        async with fanlog.connect(served.url, key_file=str(file)) as client:
            await client.publish("t", b"x")
            served.directory.remove(served.directory.keys["shop"])
            file.write_text(served.add_key("next"))
            await client.publish("t", b"y")
            assert client.welcome is not None
            await served.until(lambda: client.reconnects == 1)
            assert client.welcome.user == "next"


async def test_a_token_source_that_fails_is_asked_again() -> None:
    async with guarded() as served:
        key = served.add_key()
        answers: list[Any] = [key, OSError("no provider"), ValueError("x"), key]

        def token() -> str:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with fanlog.connect(served.url, token=token) as client:
            for connection in list(served.listener._connections):
                connection.close()
            await served.until(lambda: not answers)
            await client.publish("t", b"x")


async def test_a_client_certificate_is_a_login() -> None:
    async with guarded() as served:
        served.directory.put(
            UserEntry(name="ann", rules=Rules(role=Role.PRODUCER), certificates=("ann.example",))
        )
        admit = served.listener.admit

        def certified(sock: Any, address: str) -> Any:
            connection, session = admit(sock, address)
            connection.certificate_names = ("ann.example",)
            return connection, session

        served.listener.admit = certified  # type: ignore[method-assign]
        async with fanlog.connect(served.url) as client:
            assert client.welcome is not None
            assert client.welcome.user == "ann"
            await client.publish("t", b"x")
        # A login that is shown counts, right or wrong.
        with pytest.raises(UnauthenticatedError):
            await fanlog.connect(served.url, key=make_key())


async def test_the_program_that_the_broker_runs_in_needs_no_login() -> None:
    config = Config(security=SecurityOptions(auth=True))
    async with fanlog.Broker(config=config) as broker:
        await broker.publish("t", b"x")
        assert await broker.topics()


async def test_a_broker_without_logins_takes_a_client_with_a_key() -> None:
    async with fanlog.Broker(config=Config(listener=ListenerOptions(host=HOST, port=0))) as broker:
        listener = broker.listen()
        url = f"fanlog://{listener.host}:{listener.port}"
        async with fanlog.connect(url, key=make_key()) as client:
            await client.publish("t", b"x")
