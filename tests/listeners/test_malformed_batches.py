"""Bodies that were bent under checksums that fit, through everything that decodes: the broker stays
healthy, others don't notice, and each reader comes to the end, with gaps where it can't read."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from fanlog.client.aio import Client
from fanlog.config import BrokerOptions
from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec
from fanlog.format.columns import KEYS, KNOWN_FLAGS, SIZES
from fanlog.format.frames import FrameKind, frame
from fanlog.format.header import RECORDS_MAX
from fanlog.model import KIB, Gap
from tests.format.crafted import bomb, crafted, flipped
from tests.listeners.peers import PATIENCE_SECONDS, Frame, Peer, Serving, serving
from tests.listeners.test_fuzz import Healthy

SEEDS = 6
BATCHES_A_SEED = 50
# So small that many batches are large, and threads have much to do.
OPTIONS = BrokerOptions(unpack_loop_bytes_max=512, batch_unpacked_bytes_max=512 * KIB)
END = b"the end"


def honest(dice: random.Random, topic: int) -> bytes:
    """A batch as a client makes it, with any columns."""
    count = dice.choice((1, 2, 9, 64))
    everyone = range(count)
    return encode_batch(
        [None if dice.random() < 0.1 else dice.randbytes(dice.randrange(40)) for _ in everyone],
        keys=[b"%d" % dice.randrange(5) for _ in everyone],
        headers=None if dice.random() < 0.5 else [{"a": b"1", "b": b""} for _ in everyone],
        event_times_us=None if dice.random() < 0.5 else [dice.randrange(1 << 60) for _ in everyone],
        codec=dice.choice(list(Codec)),
        topic=topic,
    )


def bent(dice: random.Random, topic: int) -> bytes:
    """A batch with any body under checksums that fit."""
    match dice.randrange(5):
        case 0:
            body = dice.randbytes(dice.randrange(8, 400))
            count = dice.choice((1, 2, len(body) // 4, RECORDS_MAX))
            flags = dice.randrange(KNOWN_FLAGS + 1) | KEYS
            return crafted(
                body, count=max(1, count), flags=flags, codec=dice.randrange(4), topic=topic
            )
        case 1:
            packed = dice.randbytes(dice.randrange(8, 64))
            claimed = dice.choice((8, 64, 4096, 300_000, 1 << 24, (1 << 32) - 1))
            size = dice.choice((len(packed), 0, (1 << 32) - 1))
            return crafted(SIZES.pack(claimed, size) + packed, codec=2, flags=KEYS, topic=topic)
        case 2:
            return bomb(dice.choice((1000, 100_000, 400_000, 700_000)), topic=topic)
        case _:
            data = honest(dice, topic)
            size = dice.randint(1, 4)
            places = [dice.randrange(len(data)) for _ in range(size)]
            return flipped(data, [(place, 1 << dice.randrange(8)) for place in places])


async def publish(served: Serving, peer: Peer, data: bytes) -> Peer:
    """Sends a batch; the broker takes it, refuses it, or ends the connection, and then there is
    another one."""
    await peer.send(data + frame(FrameKind.PING, b"", request=77))
    while True:
        got: Frame | None = await peer.frame()
        if got is None:
            return await served.greeted()
        if got.kind is FrameKind.ERROR:
            assert got.failure.code in ("bad_format", "bad_frame"), got.failure
        if got.request == 77:
            return peer


async def read_all(client: Client, topic: str) -> tuple[int, int]:
    """How many messages of a topic came, and how many can't be read."""
    gaps: list[Gap] = []
    count = 0
    async with client.subscribe(topic, start="earliest", on_gap=gaps.append) as reader:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for message in reader:
                assert isinstance(message.headers, dict)
                assert message.event_time.tzinfo is not None
                count += 1
                if message.value == END and message.key == END:
                    break
    return count, sum(gap.next - gap.first for gap in gaps)


async def work_off(client: Client, topic: str) -> None:
    async with client.work(topic, queue="q", reset="earliest", ordered=True) as worker:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for job in worker:
                await job.ack()
                if job.value == END and job.key == END:
                    return


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_everybody_comes_to_the_end(seed: int, data: Path) -> None:
    dice = random.Random(seed)
    async with serving(data, OPTIONS) as served:
        redis = served.node.listen_redis()
        reader, writer = await asyncio.open_connection("127.0.0.1", redis.port, limit=1 << 26)
        peer = await served.greeted()
        numbers = {
            name: await peer.open_topic(name, durability="os", cleanup=cleanup)
            for name, cleanup in (("plain", "delete"), ("packed", "compact"))
        }
        writer.write(b"SUBSCRIBE plain\r\n")
        await reader.readuntil(b":1\r\n")
        async with served.client() as client:
            healthy = Healthy(client)
            going = asyncio.ensure_future(healthy.keep_going())
            for _ in range(BATCHES_A_SEED):
                for number in numbers.values():
                    make = honest if dice.random() < 0.3 else bent
                    peer = await publish(served, peer, make(dice, number))
            for name in numbers:
                await client.publish(name, END, key=END)
            core = served.node.core
            async with asyncio.timeout(PATIENCE_SECONDS):
                await reader.readuntil(b"\r\n" + END + b"\r\n")
            for name in numbers:
                count, missed = await read_all(client, name)
                assert count + missed == core.catalog.get(name).partitions[0].visible_end
                assert not missed or name == "plain"
            await work_off(client, "plain")
            await core.compact("packed")
            assert not core.catalog.get("packed").partitions[0].log.unreadable
            _, missed = await read_all(client, "packed")
            assert missed == 0
            assert core.status().state == "ok"
            assert not going.done()
            assert healthy.count
            going.cancel()
        writer.close()
        await writer.wait_closed()
