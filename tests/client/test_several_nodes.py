"""Addresses of several nodes: the client goes to one that answers."""

from __future__ import annotations

import asyncio

import pytest

import fanlog
from fanlog.client.address import Address, parse_urls
from fanlog.client.request_connection import RequestConnection
from fanlog.config import Config, ListenerOptions
from fanlog.errors import ConnectError, InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from tests.servers import free_port


def _broker() -> fanlog.Broker:
    return fanlog.Broker(config=Config(listener=ListenerOptions(port=0)))


def test_an_address_names_several_nodes() -> None:
    assert parse_urls("fanlogs://a:1, b,[::1]:3") == (
        Address("a", 1, True),
        Address("b", 7420, True),
        Address("::1", 3, True),
    )
    assert parse_urls("a:1,b:2") == (Address("a", 1), Address("b", 2))


@pytest.mark.parametrize("wrong", ["fanlog://a:1,", "fanlog://a:1,b:x", "fanlog://,a"])
def test_a_wrong_one_among_them_is_named(wrong: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_urls(wrong)


async def test_a_client_finds_the_node_that_answers_and_goes_on_at_another_one() -> None:
    async with _broker() as one, _broker() as two:
        first, second = one.listen(), two.listen()
        url = f"fanlog://127.0.0.1:{free_port()},127.0.0.1:{first.port},127.0.0.1:{second.port}"
        async with fanlog.connect(url) as client:
            assert (await client.status()).epoch == (await one.status()).epoch
            await one.stop()
            await client.publish("t", b"x")
            assert (await client.status()).epoch == (await two.status()).epoch


async def test_nobody_there_is_one_error() -> None:
    with pytest.raises(ConnectError):
        await fanlog.connect(f"fanlog://127.0.0.1:{free_port()},127.0.0.1:{free_port()}")


async def test_a_blocking_connection_finds_the_node_that_answers() -> None:
    async with _broker() as broker:
        url = f"fanlog://127.0.0.1:{free_port()},127.0.0.1:{broker.listen().port}"

        def ask() -> messages.BrokerStatus:
            with RequestConnection(url) as connection:
                return connection.ask(FrameKind.STATUS, messages.Goodbye(), messages.BrokerStatus)

        assert (await asyncio.to_thread(ask)).state == "ok"
