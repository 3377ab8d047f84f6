"""What a program is told when it can't connect, or asks for too much: each cause is a real one, and
the remedy must fit it. The same sentences for the asyncio client and for the plain connection of
Spark's tasks."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

import fanlog
from fanlog import errors
from fanlog.client.address import Address, unreachable
from fanlog.client.request_connection import RequestConnection
from fanlog.config import BrokerOptions, ClientOptions, Config, ListenerOptions, RedisOptions
from fanlog.format import messages
from fanlog.format.frames import FrameKind, message_frame
from tests.servers import free_port

# For who waits until it is over; everybody else has time enough for an answer.
QUICK = ClientOptions(connect_timeout_seconds=0.3)
PATIENT = ClientOptions(connect_timeout_seconds=40.0)
Connect = Callable[[str, ClientOptions], None]


def with_asyncio(url: str, options: ClientOptions) -> None:
    async def connect() -> None:
        async with fanlog.connect(url, options):
            raise AssertionError("connected")

    asyncio.run(connect())


def with_plain(url: str, options: ClientOptions) -> None:
    RequestConnection(url, options)


def with_sync(url: str, options: ClientOptions) -> None:
    with fanlog.sync.connect(url, options):
        raise AssertionError("connected")


BACKENDS = [with_asyncio, with_sync, with_plain]


@pytest.fixture(params=BACKENDS)
def connect(request: pytest.FixtureRequest) -> Connect:
    return request.param


@contextmanager
def somebody(answer: bytes, *, silent: bool = False) -> Iterator[str]:
    """Another program on a port: it takes what it is sent, answers, and closes. `silent`: it keeps
    the connection open and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        over = threading.Event()

        def serve() -> None:
            taken, _ = other.accept()
            with taken:
                taken.recv(4096)
                taken.sendall(answer)
                if silent:
                    over.wait(60)

        serving = threading.Thread(target=serve)
        serving.start()
        yield f"fanlog://127.0.0.1:{other.getsockname()[1]}"
        over.set()
        serving.join()


def refusal(connect: Connect, url: str, options: ClientOptions = PATIENT) -> str:
    with pytest.raises(errors.FanlogError) as caught:
        connect(url, options)
    assert isinstance(caught.value, errors.ConnectError | errors.ProtocolError)
    return str(caught.value)


def test_nobody_listens(connect: Connect) -> None:
    port = free_port()
    said = refusal(connect, f"fanlog://127.0.0.1:{port}")
    assert f"fanlog serve --port {port}" in said
    assert "Connection refused" in said


def test_nobody_listens_at_any_address_of_a_name(connect: Connect) -> None:
    """`localhost` is two addresses, and two refusals."""
    assert "fanlog serve --port" in refusal(connect, f"fanlog://localhost:{free_port()}")


def test_a_host_name_that_there_is_not(connect: Connect) -> None:
    said = refusal(connect, "fanlog://no-such-host.invalid")
    assert "'no-such-host.invalid'" in said
    assert "spelling" in said
    assert "fanlog serve" not in said, "starting a broker here would not help"


@pytest.mark.parametrize(
    ("answer", "spoken"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "it speaks HTTP"),
        (b"-ERR Protocol error: invalid bulk length\r\n", "it speaks Redis"),
        (b'INFO {"server_id":"NDIQ"}\r\n', "it speaks NATS"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "it speaks SSH"),
        (b"\x15\x03\x01\x00\x02\x02\x46" + b"\0" * 16, "it speaks TLS"),
        (b"220 mail.example.com ESMTP\r\n", "it sent b'220 mail"),
    ],
)
def test_another_program_is_called_by_its_protocol(
    connect: Connect, answer: bytes, spoken: str
) -> None:
    with somebody(answer) as url:
        said = refusal(connect, url)
    assert spoken in said
    assert "port 7420" in said
    assert "release" not in said, "it is not a matter of releases"


def test_another_program_that_says_nothing(connect: Connect) -> None:
    with somebody(b"", silent=True) as url:
        said = refusal(connect, url, QUICK)
    assert "did not greet as a Fanlog broker within 0.3 s" in said
    assert "port 7420" in said


def test_another_program_that_closes_at_once(connect: Connect) -> None:
    with somebody(b"") as url:
        said = refusal(connect, url)
    assert "closed the connection without a greeting" in said
    assert "port 7420" in said


def test_a_broker_of_another_release(connect: Connect) -> None:
    refused = messages.ErrorAnswer("unsupported_version", "speaks 2. Install the same release")
    with somebody(message_frame(FrameKind.ERROR, refused)) as url:
        assert "Install the same release" in refusal(connect, url)


async def test_the_port_for_redis_clients() -> None:
    async with fanlog.Broker(config=Config(redis=RedisOptions(port=0))) as broker:
        url = f"fanlog://127.0.0.1:{broker.listen_redis().port}"
        for connect in (with_asyncio, with_sync, with_plain):
            said = await asyncio.to_thread(refusal, connect, url)
            assert "This is the port for Redis clients" in said
            assert "port 7420" in said


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ECONNREFUSED, "fanlog serve"),
        (errno.EHOSTUNREACH, "network"),
        (errno.ENETUNREACH, "network"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EACCES, "firewall"),
        (errno.EPERM, "firewall"),
    ],
)
def test_what_helps_depends_on_what_the_system_said(number: int, remedy: str) -> None:
    fault = OSError(number, os.strerror(number))
    # As asyncio says it where a name has several addresses.
    several = OSError(f"Multiple exceptions: [Errno {number}] Connect call failed ('::1', 1)")
    for given in (fault, several):
        said = str(unreachable(Address("example.com", 7420), given))
        assert remedy in said
        assert os.strerror(number) in said
    assert ("fanlog serve" in said) == (number == errno.ECONNREFUSED)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:7421", "an address for Redis clients"),
        ("http://127.0.0.1:7420", "fanlog://127.0.0.1:7420"),
        ("fanlog://127.0.0.1:99999", "fanlog://127.0.0.1:7420"),
        ("", "fanlog://127.0.0.1:7420"),
        ("fanlog://h/?linger_ms=5", "connect(url, linger_ms=5)"),
    ],
)
def test_an_address_that_is_none_is_shown_one(url: str, said: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=re.escape(said)):
        fanlog.connect(url)


async def test_limits_name_the_setting_that_raises_them() -> None:
    """One of everything is allowed here; the second is refused."""
    broker = BrokerOptions(
        topics_max=2,
        groups_max=1,
        group_members_max=1,
        queues_max=1,
        queue_workers_max=1,
        queue_prefetch_max=5,
        transactions_max=1,
        producer_names_max=1,
        durable_positions_max=1,
    )
    config = Config(broker=broker, listener=ListenerOptions(port=0, subscriptions_max=3))
    async with fanlog.Broker(config=config) as client, AsyncExitStack() as kept:
        await client.create_topic("one")
        await client.create_topic("two")

        async def consume(member: str) -> None:
            await kept.enter_async_context(client.consume("one", group="g", member=member))

        async def work(queue: str, prefetch: int = 5) -> None:
            await kept.enter_async_context(client.work("one", queue=queue, prefetch=prefetch))

        async def follow(topic: str) -> None:
            await kept.enter_async_context(client.subscribe(topic))

        await kept.enter_async_context(client.transaction())
        with pytest.raises(errors.LimitError, match=r"broker\.transactions_max .*fanlog\.toml"):
            await client.transaction().begin()
        with pytest.raises(errors.TooManyTopicsError, match=r"broker\.topics_max .*fanlog\.toml"):
            await client.create_topic("three")
        await consume("first")
        with pytest.raises(errors.LimitError, match=r"broker\.group_members_max"):
            await consume("second")
        with pytest.raises(errors.LimitError, match=r"broker\.queue_prefetch_max"):
            await work("q", prefetch=6)
        await work("q")
        with pytest.raises(errors.LimitError, match=r"broker\.queue_workers_max"):
            await work("q")
        with pytest.raises(errors.LimitError, match=r"broker\.queues_max"):
            await work("q2")
        await follow("one")
        with pytest.raises(errors.LimitError, match=r"listener\.subscriptions_max"):
            await follow("two")


async def test_a_message_that_is_too_large_names_the_command_that_allows_more() -> None:
    async with fanlog.Broker() as broker:
        await broker.create_topic("small", message_bytes_max=10)
        with pytest.raises(
            errors.MessageTooLargeError,
            match="fanlog topic alter small --message-bytes-max BYTES",
        ):
            await broker.publish("small", b"x" * 11)


async def test_a_missing_dead_letter_topic_appears_by_itself() -> None:
    async with fanlog.Broker() as broker:
        with pytest.raises(errors.TopicNotFoundError, match="appears by itself") as caught:
            await broker.dead_letters.list("dead.emails")
        assert "topic create" not in str(caught.value)
        with pytest.raises(errors.TopicNotFoundError, match="topic create emails"):
            await broker.describe_topic("emails")
        with pytest.raises(errors.TopicNotFoundError) as caught:
            await broker.delete_topic("emails")
        assert "create" not in str(caught.value), "who deletes does not want to create"


async def test_a_wrong_client_option_is_told_by_its_name() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="linger_ms: expected float"):
        fanlog.connect("fanlog://127.0.0.1", linger_ms="soon")
    with pytest.raises(errors.FanlogError, match="linger_ms: expected float"):
        fanlog.Broker(linger_ms="soon")
