"""REST through edges: the same requests, whichever process they come to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from fanlog.config import Config
from fanlog.edge.node import FanlogEdge
from tests.awaited import awaited
from tests.edge.stage import broker_at, until

URL = "/v1/topics/orders/messages"


@asynccontextmanager
async def web_edge(upstream: str) -> AsyncIterator[tuple[FanlogEdge, aiohttp.ClientSession]]:
    config = Config()
    config = msgspec.structs.replace(config, web=msgspec.structs.replace(config.web, port=0))
    node = FanlogEdge(upstream, config)
    node.start()
    try:
        await node.connect()
        listener = await node.listen_web()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as http:
            yield node, http
    finally:
        await node.stop()


async def test_a_retry_on_another_edge_publishes_nothing_again() -> None:
    async with broker_at() as broker:
        upstream = f"fanlog://127.0.0.1:{broker.listen().port}"
        async with web_edge(upstream) as (_, one), web_edge(upstream) as (_, other):
            told: list[Any] = []
            body = {"messages": [{"key": f"k{number}", "text": str(number)} for number in range(9)]}
            for http in (one, other, one):
                headers = {"Idempotency-Key": "u-1"}
                async with http.post(URL, json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    told.append(await answer.json())
            assert told[0] == told[1] == told[2]
            async with other.post(URL, data="x", headers={"Idempotency-Key": "u-1"}) as answer:
                assert answer.status == 422
            assert (await broker.describe_topic("orders")).records == 9
            # The positions are upstream's, so that any edge goes on there.
            last = told[0]["published"][-1]
            async with other.get(f"{URL}?position={last['position']}") as answer:
                page = await answer.json()
                assert "gaps" not in page
                assert page["messages"] == []


async def test_a_long_poll_on_an_edge_gets_what_is_published_upstream() -> None:
    async with broker_at() as broker:
        await broker.create_topic("orders")
        async with web_edge(f"fanlog://127.0.0.1:{broker.listen().port}") as (node, http):

            async def poll() -> Any:
                async with http.get(f"{URL}?start=latest&wait_seconds=30") as answer:
                    return await answer.json()

            polling = asyncio.ensure_future(poll())

            def waits() -> bool:
                topic = node.core.catalog.find("orders")
                return topic is not None and awaited(topic.partitions[0])

            await until(waits)
            await broker.publish("orders", "new")
            assert [message["text"] for message in (await polling)["messages"]] == ["new"]
