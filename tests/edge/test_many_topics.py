"""A pattern with more topics than one answer tells of, through an edge."""

from __future__ import annotations

import fanlog
from tests.client.proxy import proxy_to
from tests.edge.stage import PATIENCE_SECONDS, broker_at, edge_of, until

TOPICS = 1100


async def test_topics_that_went_during_an_outage_are_gone_however_many_there_are() -> None:
    async with broker_at() as broker:
        for i in range(TOPICS):
            await broker.create_topic(f"many.{i:04}")
        async with (
            proxy_to(broker.listen().port) as proxy,
            edge_of(f"fanlog://127.0.0.1:{proxy.port}") as edge,
            fanlog.connect(edge.url) as client,
            client.subscribe("many.*") as reader,
        ):
            await until(lambda: edge.ends(f"many.{TOPICS - 1:04}") == [0])
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not edge.node.up)
            await broker.delete_topic("many.0005")
            await broker.delete_topic(f"many.{TOPICS - 1:04}")
            proxy.refusing = False
            await until(lambda: not edge.ends("many.0005"))
            await until(lambda: not edge.ends(f"many.{TOPICS - 1:04}"))
            await broker.publish("many.0000", "first")
            await broker.publish(f"many.{TOPICS - 2:04}", "last")
            got = {(await reader.next(PATIENCE_SECONDS)).text for _ in range(2)}
            assert got == {"first", "last"}
