"""Waiting for messages: what a long poll does while there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore


async def wait_for_more(
    core: BrokerCore, topic: str, offsets: Mapping[int, int], seconds: float
) -> None:
    """Returns when there is more than `offsets` in one of these partitions, when the topic goes or
    grows, or after so many seconds."""
    found = core.catalog.find(topic)
    if found is None:
        return
    woken = asyncio.Event()
    watched = [found.partitions[i] for i in offsets if i < len(found.partitions)]
    if any(partition.visible_end > offsets[partition.index] for partition in watched):
        return
    for partition in watched:
        core.reading.when_more(partition, woken.set)
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        pass
    finally:
        for partition in watched:
            core.reading.no_more(partition, woken.set)
