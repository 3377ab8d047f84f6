"""TLS in the clients without asyncio: the blocking one, Spark's connection, and the commands."""

from __future__ import annotations

import asyncio

import pytest

import fanlog
from fanlog.cli import main
from fanlog.client.request_connection import RequestConnection
from fanlog.config import ClientOptions
from fanlog.errors import ConnectError, InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.spark.connecting import open_broker
from fanlog.spark.options import read_options
from tests.tls.papers import HOST, Papers, serving


async def test_the_blocking_client(papers: Papers) -> None:
    def work(url: str) -> bytes:
        with fanlog.sync.connect(url, tls_ca_file=papers.ca) as client:
            client.publish("orders", b"x" * 100_000)
            with client.subscribe("orders", start="earliest") as orders:
                return orders.next(30).value

    async with serving(papers.options()) as served:
        assert len(await asyncio.to_thread(work, served.url)) == 100_000


def _ask(broker: RequestConnection) -> int:
    """Answers that are larger than a record, asked for ahead."""
    numbers = [broker.post(FrameKind.LIST_TOPICS, messages.ListTopics()) for _ in range(3)]
    return sum(len(broker.take(number)) for number in numbers)


async def test_sparks_connection(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(papers.options()) as served:
        async with fanlog.connect(served.url, tls_ca_file=papers.ca) as client:
            for n in range(200):
                await client.create_topic(f"topic.with.a.rather.long.name.{n}")

        def by_option() -> int:
            given = {"topics": "orders", "url": served.url, "tlsCaFile": papers.ca}
            with open_broker(read_options(given)) as broker:
                return _ask(broker)

        def by_environment() -> int:
            with open_broker(read_options({"topics": "orders", "url": served.url})) as broker:
                status = FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus
                assert broker.ask_at_length(*status, 30.0).topics >= 200
                return _ask(broker)

        assert await asyncio.to_thread(by_option) > 3 * 16_384
        with pytest.raises(ConnectError, match="Give tls_ca_file"):
            await asyncio.to_thread(by_environment)
        monkeypatch.setenv("FANLOG_TLS_CA_FILE", papers.ca)
        assert await asyncio.to_thread(by_environment) > 3 * 16_384


async def test_sparks_connection_says_what_is_wrong(papers: Papers) -> None:
    required = papers.options(client_ca_file=papers.ca, client_certificates="required")
    async with serving(required) as served:
        trusting = ClientOptions(tls_ca_file=papers.ca)
        with pytest.raises(ConnectError, match="wants a certificate of this client"):
            await asyncio.to_thread(RequestConnection, served.url, trusting)
        known = ClientOptions(**papers.client())
        with await asyncio.to_thread(RequestConnection, served.url, known) as broker:
            assert broker.welcome.version
    async with serving(papers.options(certificate_file="")) as served:
        with pytest.raises(ConnectError, match="does not use TLS"):
            await asyncio.to_thread(RequestConnection, served.url, trusting)


async def test_health_over_https(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(papers.options(), web=True) as served:
        assert served.web is not None
        command = ["health", "--url", f"https://{HOST}:{served.web.port}"]
        assert await asyncio.to_thread(main, command) != 0
        monkeypatch.setenv("FANLOG_TLS_CA_FILE", papers.ca)
        assert await asyncio.to_thread(main, command) == 0


async def test_commands(
    papers: Papers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(papers.options()) as served:
        command = ["publish", "greetings", "hello", "--url", served.url]
        assert await asyncio.to_thread(main, command) != 0
        assert "FANLOG_TLS_CA_FILE" in " ".join(capsys.readouterr().err.split())
        monkeypatch.setenv("FANLOG_TLS_CA_FILE", papers.ca)
        assert await asyncio.to_thread(main, command) == 0
        plain = ["publish", "greetings", "hello", "--url", f"fanlog://{HOST}:{served.native.port}"]
        assert await asyncio.to_thread(main, plain) != 0
        assert "fanlogs://" in " ".join(capsys.readouterr().err.split())


def test_files_that_are_none(papers: Papers) -> None:
    certificate, _ = papers.authority.issue("client", ["client"], client=True)
    for options, said in (
        (ClientOptions(tls_ca_file="/nowhere"), "tls_ca_file: /nowhere can't be read"),
        (ClientOptions(tls_certificate_file=str(certificate)), "tls_key_file its private key"),
        (ClientOptions(tls_key_file="/nowhere"), "without tls_certificate_file"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            RequestConnection("fanlogs://127.0.0.1:1", options)
