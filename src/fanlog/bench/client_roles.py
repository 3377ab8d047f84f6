"""A publisher and a subscriber for each Python client, written as that client's users would.

Law: each role is one coroutine that touches one message at a time. A subscriber calls `ready` once
it is subscribed and returns the time when it had everything, a publisher the time when it began.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

import fanlog
from fanlog.bench.systems import HOST, SystemKind

# What redis-py's documentation suggests for many commands; one PUBLISH a round trip is far slower.
REDIS_PIPELINE_MESSAGES = 100
# Redis and NATS buffer without limit for a slow reader; this is the same.
FANLOG_TAIL_BYTES = 256 << 20
TOPIC = "bench"

PublisherRole = Callable[[int, int, bytes], Coroutine[Any, Any, float]]
Subscriber = Callable[[int, int, Callable[[], None]], Coroutine[Any, Any, float]]


async def publish_redis(port: int, messages: int, payload: bytes) -> float:
    redis: Any = importlib.import_module("redis.asyncio")
    async with redis.Redis(host=HOST, port=port) as client:
        await client.ping()
        began = time.perf_counter()
        for first in range(0, messages, REDIS_PIPELINE_MESSAGES):
            async with client.pipeline(transaction=False) as pipeline:
                for _ in range(min(REDIS_PIPELINE_MESSAGES, messages - first)):
                    pipeline.publish(TOPIC, payload)
                await pipeline.execute()
        return began


async def subscribe_redis(port: int, messages: int, ready: Callable[[], None]) -> float:
    redis: Any = importlib.import_module("redis.asyncio")
    received = 0
    async with redis.Redis(host=HOST, port=port) as client, client.pubsub() as pubsub:
        await pubsub.subscribe(TOPIC)
        async for message in pubsub.listen():
            if message["type"] == "subscribe":
                ready()
                continue
            received += 1
            if received == messages:
                break
        return time.perf_counter()


async def publish_nats(port: int, messages: int, payload: bytes) -> float:
    nats: Any = importlib.import_module("nats")
    client = await nats.connect(f"nats://{HOST}:{port}")
    began = time.perf_counter()
    for _ in range(messages):
        await client.publish(TOPIC, payload)
    await client.flush(timeout=60)
    await client.close()
    return began


async def subscribe_nats(port: int, messages: int, ready: Callable[[], None]) -> float:
    nats: Any = importlib.import_module("nats")
    received = 0
    complete = asyncio.Event()

    # A callback is this client's faster way; its iterator costs a future for every message.
    async def count(_: object) -> None:
        nonlocal received
        received += 1
        if received == messages:
            complete.set()

    client = await nats.connect(f"nats://{HOST}:{port}")
    # Without limits: by default the client drops messages if its reader is slow.
    await client.subscribe(TOPIC, cb=count, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    ready()
    await complete.wait()
    ended = time.perf_counter()
    await client.close()
    return ended


async def publish_fanlog(port: int, messages: int, payload: bytes) -> float:
    async with await fanlog.connect(f"fanlog://{HOST}:{port}") as client:
        began = time.perf_counter()
        for _ in range(messages):
            await client.send(TOPIC, payload)
        await client.flush()
        return began


async def subscribe_fanlog(port: int, messages: int, ready: Callable[[], None]) -> float:
    received = 0
    async with await fanlog.connect(f"fanlog://{HOST}:{port}") as client:
        await client.create_topic(TOPIC, durability="memory", tail_bytes=FANLOG_TAIL_BYTES)
        async with client.subscribe(TOPIC, start="earliest") as subscription:
            ready()
            async for _ in subscription:
                received += 1
                if received == messages:
                    break
            return time.perf_counter()


PUBLISHERS: dict[SystemKind, PublisherRole] = {
    "fanlog": publish_fanlog,
    "redis": publish_redis,
    "nats": publish_nats,
}
SUBSCRIBERS: dict[SystemKind, Subscriber] = {
    "fanlog": subscribe_fanlog,
    "redis": subscribe_redis,
    "nats": subscribe_nats,
}
