"""Publishing with `idempotent=False`: nobody counts, and a repeat may be stored twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fanlog
from fanlog import errors
from tests.client.proxy import proxy_to
from tests.client.test_exactly_once import let_through, publish_unanswered, records_in
from tests.client.test_reconnect import running, through
from tests.client.ways import PATIENCE_SECONDS


async def test_a_client_that_is_not_idempotent_publishes_in_order_and_is_not_remembered(
    data: Path,
) -> None:
    async with running(data) as broker:
        async with fanlog.connect(broker.url, idempotent=False, batch_records=2) as client:
            some = [client.publish("t", b"x") for _ in range(9)]
            assert [r.offset for r in await asyncio.gather(*some)] == list(range(9))
        assert broker.node is not None
        (partition,) = broker.node.core.catalog.get("t").partitions
        assert not partition.producers


@pytest.mark.parametrize(("idempotent", "records"), [(True, 2), (False, 3)])
async def test_only_an_idempotent_client_has_a_repeat_stored_once(
    data: Path, *, idempotent: bool, records: int
) -> None:
    async with (
        running(data) as broker,
        proxy_to(broker.port) as proxy,
        through(proxy, idempotent=idempotent) as client,
    ):
        await client.publish("t", b"0")
        publishing = await publish_unanswered(client, proxy, broker.url, b"1")
        let_through(proxy)
        receipt = await asyncio.wait_for(publishing, PATIENCE_SECONDS)
        assert receipt.duplicate is idempotent
        assert await records_in(broker.url, "t") == records


async def test_a_producer_with_a_name_is_always_idempotent() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="always idempotent"):
        fanlog.connect(producer="billing", idempotent=False)
