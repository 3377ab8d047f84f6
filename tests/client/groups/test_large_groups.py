"""Members that follow thousands of topics, over the network: joining, letting go, coming back."""

from __future__ import annotations

import asyncio

import fanlog
from fanlog.config import BrokerOptions, Config
from tests.client.proxy import proxy_to
from tests.client.ways import FREE_PORT, until

TOPICS = 5000
# As long as this takes on a slow machine; nothing is measured by it.
PATIENCE_SECONDS = 100.0


async def test_two_members_share_5000_topics_and_one_comes_back_to_all_of_its_own() -> None:
    config = Config(listener=FREE_PORT, broker=BrokerOptions(revoke_seconds=60.0))
    async with fanlog.Broker(config=config) as broker, asyncio.timeout(PATIENCE_SECONDS):
        port = broker.listen().port
        await asyncio.gather(*(broker.create_topic(f"many.{i}") for i in range(TOPICS)))
        async with (
            proxy_to(port) as proxy,
            fanlog.connect(f"fanlog://127.0.0.1:{port}") as calm,
            fanlog.connect(f"fanlog://127.0.0.1:{proxy.port}") as client,
            calm.consume("many.>", group="g", reset="earliest") as first,
        ):
            await until(lambda: len(first.partitions) == TOPICS)
            lost: list[object] = []
            async with client.consume("many.>", group="g", on_revoke=lost.extend) as second:
                await until(lambda: len(first.partitions) == len(second.partitions) == TOPICS // 2)
                mine = second.partitions
                assert not set(mine) & set(first.partitions)
                await asyncio.gather(*(broker.publish(topic, b"x") for topic, _ in mine))
                got = {(await second.next()).topic for _ in mine}
                assert got == {topic for topic, _ in mine}
                await second.commit()
                proxy.cut()
                await until(lambda: client.reconnects == 1 and client.connected)
                await broker.publish(mine[0][0], b"y")
                assert (await second.next()).value == b"y"
                assert second.partitions == mine
                assert lost == []
            await until(lambda: len(first.partitions) == TOPICS)
            info = await calm.groups.describe("g")
            assert info.lag == 1
            assert len(info.partitions) == TOPICS
