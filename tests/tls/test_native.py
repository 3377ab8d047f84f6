"""TLS on the native listener, as clients see it."""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
import ssl
import threading

import pytest

import fanlog
from fanlog.client.core.handshake import hello
from fanlog.errors import ConfigError, ConnectError, FanlogError
from fanlog.format import messages
from fanlog.format.batch import check_batch
from fanlog.format.frames import FRAME_HEADER_BYTES, FrameCutter, FrameKind, message_frame
from fanlog.format.header import KIND_BATCH
from tests.tls.papers import HOST, PATIENCE_SECONDS, Papers, serving


async def test_a_client_publishes_and_reads_over_tls(papers: Papers) -> None:
    async with (
        serving(papers.options()) as served,
        fanlog.connect(served.url, tls_ca_file=papers.ca) as client,
    ):
        async with client.subscribe("orders", start="earliest") as orders:
            # Larger than a record, and than what a socket takes at once.
            sent = [b"small", b"x" * 100_000, b"y" * 1_000_000, b"last"]
            for value in sent:
                await client.publish("orders", value)
            got = [await orders.next(PATIENCE_SECONDS) for _ in sent]
        assert [message.value for message in got] == sent


async def test_a_connection_over_tls_that_was_closed_before_is_closed_again(papers: Papers) -> None:
    """As it is if a broker refuses the login of a client that comes back."""
    async with (
        serving(papers.options()) as served,
        fanlog.connect(served.url, tls_ca_file=papers.ca, reconnect=False) as client,
    ):
        link = client._session._link
        assert link is not None
        link.close()
        link.close()


def _shake(port: int, context: ssl.SSLContext, begin: bytes = b"") -> bytes:
    with (
        socket.create_connection((HOST, port), PATIENCE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        assert secure.version() == "TLSv1.3"
        secure.sendall(begin)
        return secure.recv(1 << 16)


async def test_tls_below_1_3_is_refused(papers: Papers, caplog: pytest.LogCaptureFixture) -> None:
    old = ssl.create_default_context(cafile=papers.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(papers.options()) as served:
        port = served.native.port
        new = ssl.create_default_context(cafile=papers.ca)
        greeting = await asyncio.to_thread(_shake, port, new, hello("test"))
        assert len(greeting) > FRAME_HEADER_BYTES
        with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|protocol version"):
            await asyncio.to_thread(_shake, port, old)
    assert "it offers no TLS 1.3" in caplog.text


async def test_who_issued_it_has_to_be_known(papers: Papers) -> None:
    async with serving(papers.options()) as served:
        with pytest.raises(ConnectError, match="Give tls_ca_file"):
            await fanlog.connect(served.url)


async def test_another_host_is_refused_unless_it_is_named(papers: Papers) -> None:
    pair = papers.authority.issue("other", ["broker.example.com"])
    options = papers.options(certificate_file=str(pair[0]), private_key_file=str(pair[1]))
    async with serving(options) as served:
        with pytest.raises(ConnectError, match=r"for another host.*tls_server_name"):
            await fanlog.connect(served.url, tls_ca_file=papers.ca)
        async with fanlog.connect(
            served.url, tls_ca_file=papers.ca, tls_server_name="broker.example.com"
        ) as client:
            assert client.connected


async def test_an_expired_certificate_is_refused(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=10)
    pair = papers.authority.issue("old", ["localhost", HOST], days=5, now=past)
    options = papers.options(certificate_file=str(pair[0]), private_key_file=str(pair[1]))
    async with serving(options) as served:
        with pytest.raises(ConnectError, match="has expired"):
            await fanlog.connect(served.url, tls_ca_file=papers.ca)
    assert "has expired: clients refuse it" in caplog.text


async def test_a_client_without_tls_is_told_to_use_it(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(papers.options()) as served:
        with pytest.raises(FanlogError, match=r"This port speaks TLS.*fanlogs://"):
            await fanlog.connect(f"fanlog://{HOST}:{served.native.port}")
        reader, writer = await asyncio.open_connection(HOST, served.native.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"https://" in answer
    assert "speaks without TLS to a port with TLS" in caplog.text


async def test_a_client_with_tls_at_a_plain_port_is_told_so(papers: Papers) -> None:
    async with serving(papers.options(certificate_file="", private_key_file="")) as served:
        with pytest.raises(ConnectError, match=r"does not use TLS.*fanlog://"):
            await fanlog.connect(served.url, tls_ca_file=papers.ca)


async def test_client_certificates_are_asked_for_and_named(papers: Papers) -> None:
    required = papers.options(client_ca_file=papers.ca, client_certificates="required")
    async with serving(required) as served:
        with pytest.raises(ConnectError, match="wants a certificate of this client"):
            await fanlog.connect(served.url, tls_ca_file=papers.ca)
        async with fanlog.connect(served.url, **papers.client("billing")):
            connection = next(iter(served.native._connections))
            assert connection.certificate_names == ("billing",)


async def test_a_client_certificate_of_a_stranger_is_refused(
    papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Papers(papers.folder / "stranger").client("billing")
    stranger["tls_ca_file"] = papers.ca
    options = papers.options(client_ca_file=papers.ca)
    async with serving(options) as served:
        with pytest.raises(ConnectError, match="refused this client's certificate"):
            await fanlog.connect(served.url, **stranger)
        async with fanlog.connect(served.url, tls_ca_file=papers.ca):
            connection = next(iter(served.native._connections))
            assert connection.certificate_names == ()
    assert "not from an authority in tls.client_ca_file" in caplog.text


async def test_a_slow_reader_holds_no_more_than_a_plain_one(papers: Papers) -> None:
    """Nothing is queued for it, and it gets everything, in order, when it reads again."""
    context = ssl.create_default_context(cafile=papers.ca)
    reading = threading.Event()
    wanted = messages.Subscribe(target="numbers", window_bytes=1 << 26)

    def read(port: int) -> list[int]:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(PATIENCE_SECONDS)
        plain.connect((HOST, port))
        offsets: list[int] = []
        cutter = FrameCutter(1 << 30)
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            sock.sendall(hello("slow"))
            sock.sendall(message_frame(FrameKind.SUBSCRIBE, wanted, request=1, aux=1))
            reading.wait(PATIENCE_SECONDS)
            while len(offsets) < 300:
                for kind, data, at, _ in cutter.cut(sock.recv(1 << 16)):
                    if kind == KIND_BATCH:
                        offsets.append(check_batch(data, at).base_offset)
        return offsets

    async with (
        serving(papers.options()) as served,
        fanlog.connect(served.url, tls_ca_file=papers.ca) as publisher,
    ):
        await publisher.create_topic("numbers", tail_bytes=1 << 26)
        reader = asyncio.create_task(asyncio.to_thread(read, served.native.port))
        while not len(served.node.core.subscriptions):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(300):
            await publisher.publish("numbers", b"x" * 30_000)
        (slow,) = [c for c in served.native._connections if c.blocked]
        assert 0 < slow.kept_bytes < 64_000
        reading.set()
        assert await reader == list(range(300))


async def test_wrong_files_are_refused_at_the_start(papers: Papers) -> None:
    missing = papers.options(certificate_file="/nowhere/broker.pem")
    with pytest.raises(ConfigError, match="can't be read"):
        async with serving(missing):
            pass
    _, other_key = papers.authority.issue("other", ["localhost"])
    with pytest.raises(ConfigError, match="is not the key of"):
        async with serving(papers.options(private_key_file=str(other_key))):
            pass
    with pytest.raises(ConfigError, match=r"Set tls\.client_ca_file"):
        async with serving(papers.options(client_certificates="required")):
            pass


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:  # pyright: ignore[reportUnusedFunction]
    caplog.set_level(logging.INFO, "fanlog")
