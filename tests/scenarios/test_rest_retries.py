"""A broker is killed under REST clients that retry: each message is stored once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

import fanlog
from tests.scenarios.broker_process import BrokerProcess

CLIENTS = 8
EACH = 40


async def _publish(broker: BrokerProcess, client: int, sent: list[int]) -> None:
    """Publishes its messages in order, each under a key of its own, until it is acknowledged."""
    async with aiohttp.ClientSession() as http:
        for number in range(EACH):
            key = f"{client}-{number}"
            while True:
                url = f"http://127.0.0.1:{broker.http_port}/v1/topics/orders/messages"
                headers = {"Idempotency-Key": key, "Content-Type": "text/plain"}
                try:
                    async with http.post(url, data=key, headers=headers) as answer:
                        if answer.status == 200:
                            break
                        assert answer.status >= 500, await answer.text()
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.02)
            sent[0] += 1


async def test_retries_over_two_kills_store_each_message_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--http-port", "0")
    broker.start()
    try:
        sent = [0]
        async with fanlog.connect(broker.url) as client:
            await client.create_topic("orders", partitions=3, durability="fsync")
        publishing = asyncio.gather(*(_publish(broker, c, sent) for c in range(CLIENTS)))
        for kill_after in (CLIENTS * EACH // 4, CLIENTS * EACH // 2):
            while sent[0] < kill_after:  # noqa: ASYNC110 - a counter, no event
                await asyncio.sleep(0.005)
            broker.kill()
            await asyncio.to_thread(broker.start)
        await publishing
        async with fanlog.connect(broker.url) as client:
            assert (await client.describe_topic("orders")).records == CLIENTS * EACH
            found: list[str] = []
            for partition in range(3):
                offset = 0
                while fetched := (await client.fetch("orders", partition, offset)).batches:
                    found += [value.decode() for b in fetched for value in b.values if value]
                    offset = fetched[-1].next_offset
        assert sorted(found) == sorted(f"{c}-{n}" for c in range(CLIENTS) for n in range(EACH))
    finally:
        broker.stop()
