"""Edges of a broker that asks for logins: their clients are who they are at the broker, and what is
changed there counts here within a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

import fanlog
from fanlog.config import ClientOptions, Config, ListenerOptions, WebOptions
from fanlog.edge.node import CLIENT, FanlogEdge
from fanlog.errors import ConfigError, ForbiddenError, UnauthenticatedError
from fanlog.identity import Role, Rules
from tests.edge.stage import PATIENCE_SECONDS, until
from tests.listeners.test_login import SECOND_US, Guarded, Runtime, guarded

ADMIN = Rules(role=Role.ADMIN)
_CONFIG = Config(listener=ListenerOptions(port=0), web=WebOptions(port=0))


@dataclass
class Stage:
    broker: Guarded
    edge: FanlogEdge
    url: str


@asynccontextmanager
async def edge_at(broker: Guarded, key: str) -> AsyncIterator[FanlogEdge]:
    options: ClientOptions = msgspec.structs.replace(CLIENT, key=key)
    node = FanlogEdge(broker.url, _CONFIG, runtime=Runtime(), client_options=options)
    node.start()
    try:
        await node.connect()
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with guarded() as broker, edge_at(broker, broker.add_key("edge", ADMIN)) as edge:
        yield Stage(broker, edge, f"fanlog://127.0.0.1:{edge.listen().port}")


async def begun(subscription: fanlog.Subscription) -> fanlog.Subscription:
    await subscription.start()
    return subscription


async def test_nobody_is_let_in_without_a_login_or_with_a_wrong_one() -> None:
    async with stage() as here:
        wrong = here.broker.add_key("gone")
        here.broker.directory.remove(here.broker.directory.keys["gone"])
        tries: list[dict[str, Any]] = [{}, {"key": wrong}, {"user": "ann", "password": "no"}]
        for options in tries:
            with pytest.raises(UnauthenticatedError):
                async with fanlog.connect(here.url, **options):
                    pass


async def test_a_client_is_at_the_edge_who_it_is_at_the_broker() -> None:
    async with stage() as here:
        rules = Rules(publish=("orders.*",), subscribe=("orders.>",), groups=("billing",))
        key = here.broker.add_key("shop", rules)
        async with fanlog.connect(here.url, key=key) as shop:
            subscription = await begun(shop.subscribe("orders.>"))
            await shop.publish("orders.eu", b"one")
            message = await subscription.next(timeout_seconds=PATIENCE_SECONDS)
            assert message.value == b"one"
            # From the mirrors, which the edge decides about, and upstream, where the broker does.
            for pattern in ("private", ">", "*.eu"):
                with pytest.raises(ForbiddenError):
                    await begun(shop.subscribe(pattern))
            with pytest.raises(ForbiddenError):
                await shop.publish("private", b"two")
            with pytest.raises(ForbiddenError):
                await shop.create_topic("orders.us")


async def test_a_revoked_key_is_cut_off_at_the_edge() -> None:
    async with stage() as here:
        key = here.broker.add_key("shop")
        async with fanlog.connect(here.url, key=key) as publishing:
            await publishing.publish("orders", b"one")
            async with fanlog.connect(here.url, key=key) as reading:
                subscription = await begun(reading.subscribe("orders", start="earliest"))
                await subscription.next(timeout_seconds=PATIENCE_SECONDS)
                here.broker.directory.remove(here.broker.directory.keys["shop"])
                with pytest.raises(UnauthenticatedError):
                    await subscription.next(timeout_seconds=PATIENCE_SECONDS)
            with pytest.raises(UnauthenticatedError):
                await publishing.publish("orders", b"two", timeout_seconds=PATIENCE_SECONDS)
        with pytest.raises(UnauthenticatedError):
            async with fanlog.connect(here.url, key=key):
                pass


async def test_a_topic_that_is_taken_from_a_reader_ends_at_the_edge() -> None:
    async with stage() as here:
        key = here.broker.add_key("shop", Rules(subscribe=("orders", "private")))
        async with fanlog.connect(here.url, key=key) as shop:
            kept = await begun(shop.subscribe("orders"))
            taken = await begun(shop.subscribe("private"))
            here.broker.change("shop", rules=Rules(subscribe=("orders",)))
            with pytest.raises(ForbiddenError):
                await taken.next(timeout_seconds=PATIENCE_SECONDS)
            admin = here.broker.add_key("root", ADMIN)
            async with fanlog.connect(here.broker.url, key=admin) as root:
                await root.publish("orders", b"on")
            assert (await kept.next(timeout_seconds=PATIENCE_SECONDS)).value == b"on"


async def test_who_is_in_stays_while_the_broker_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as here:
        key = here.broker.add_key("shop")
        gate = here.edge._edge_gate

        async def away(asked: object) -> object:
            raise fanlog.errors.ConnectionLostError("The broker is away.")

        async with fanlog.connect(here.url, key=key) as shop:
            await begun(shop.subscribe("orders"))
            monkeypatch.setattr(gate, "_ask", away)
            assert not await gate.look()
            here.edge.recheck()
            await asyncio.sleep(0)
            assert shop.connected
            # It logged in a moment ago: that is still known. Nobody else is let in.
            other = here.broker.add_key("other")
            with pytest.raises(UnauthenticatedError, match="upstream"):
                async with fanlog.connect(here.url, key=other):
                    pass


async def test_an_account_that_expires_is_over_without_asking() -> None:
    async with stage() as here:
        now_us = here.broker.runtime.now_us()
        key = here.broker.add_key("shop", expires_us=now_us + 3600 * SECOND_US)
        async with fanlog.connect(here.url, key=key) as shop:
            subscription = await begun(shop.subscribe("orders"))
            assert isinstance(here.edge._runtime, Runtime)
            here.edge._runtime.ahead_us = here.broker.runtime.ahead_us = 3601 * SECOND_US
            with pytest.raises(UnauthenticatedError):
                await subscription.next(timeout_seconds=PATIENCE_SECONDS)
        await until(lambda: not here.edge.core.connections)


async def test_a_key_publishes_over_http_to_a_topic_that_the_edge_does_not_know() -> None:
    async with stage() as here:
        key = here.broker.add_key("shop", Rules(publish=("orders.>",)))
        listener = await here.edge.listen_web()
        login = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
            for topic, status in (("orders.new", 200), ("orders.new", 200), ("private", 403)):
                path = f"/v1/topics/{topic}/messages"
                async with http.post(path, data=b"one", headers=login) as answer:
                    assert answer.status == status, await answer.text()
        assert here.broker.node.core.catalog.find("orders.new") is not None


async def test_an_edge_whose_own_key_is_no_admins_says_so() -> None:
    async with guarded() as broker:
        key = broker.add_key("edge", Rules(role=Role.CONSUMER))
        with pytest.raises(ConfigError, match="role admin"):
            async with edge_at(broker, key):
                pass
