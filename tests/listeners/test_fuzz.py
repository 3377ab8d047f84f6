"""Bent sessions: bytes flipped, cut, inserted, doubled and swapped. The broker never fails and
never hangs, the log stays valid, and a healthy client does not notice."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from fanlog.client.aio import Client
from fanlog.format import messages
from fanlog.format.batch import check_batch
from fanlog.format.checksum import crc32c
from fanlog.format.frames import FrameKind, frame
from tests.listeners.peers import PATIENCE_SECONDS, Frame, Serving, patched, serving
from tests.listeners.session import session_frames

SEEDS = 12
SESSIONS_A_SEED = 40
MAY_END_WITH = {
    "bad_checksum",
    "bad_format",
    "bad_frame",
    "bad_magic",
    "unknown_command",
    "unsupported_version",
}


def bend(data: bytes, dice: random.Random) -> bytes:
    """`data` with one to three faults."""
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(data))
        end = min(len(data), at + dice.choice((1, 2, 4, 16, 64)))
        match dice.randrange(7):
            case 0:
                data = patched(data, at, bytes([data[at] ^ 1 << dice.randrange(8)]))
            case 1:
                data = patched(data, at, dice.choice((b"\0", b"\xff", b"\x7f", b"\x80")))
            case 2:
                data = data[:at] + data[end:]
            case 3:
                data = data[:at] + dice.randbytes(end - at) + data[at:]
            case 4:
                data = data[:end] + data[at:]
            case 5:
                data = data[:at] or data
            case _:
                data = patched(data, at, dice.randbytes(end - at)[: len(data) - at])
    return data


def bend_fields(frames: list[bytes], dice: random.Random) -> bytes:
    """A session whose faults get past the first checks: lengths and checksums are put right."""
    frames = list(frames)
    i = dice.randrange(1, len(frames))
    data = bend(frames[i], dice)
    size = max(len(data) // 8 * 8, 72) if frames[i][4] == FrameKind.BATCH else max(len(data), 16)
    data = data.ljust(size, b"\0")[:size]
    data = size.to_bytes(4, "little") + frames[i][4:6] + data[6:]
    if data[4] == FrameKind.BATCH:
        data = patched(data, 52, crc32c(data[56:]).to_bytes(4, "little"))
    frames[i] = data
    asked = frames[1:]
    if dice.random() < 0.3:
        dice.shuffle(asked)
    return b"".join([frames[0], *asked])


async def say(served: Serving, data: bytes, dice: random.Random) -> list[Frame]:
    """What the broker answers to these bytes, up to the end of the connection."""
    peer = await served.dial()
    cut = dice.randrange(len(data))
    try:
        await peer.send(data[:cut])
        await asyncio.sleep(0)
        await peer.send(data[cut:])
        for _ in range(4):
            await asyncio.sleep(0)
        peer.finish_sending()
    except OSError:
        pass  # the broker has closed already
    frames = await peer.rest()
    peer.close()
    return frames


def check_answers(frames: list[Frame]) -> None:
    for got in frames:
        if got.kind is FrameKind.BATCH:
            check_batch(got.payload)
        if got.kind is FrameKind.ERROR:
            failure = got.failure
            assert failure.code != "internal", failure
            if not got.request:
                assert failure.code in MAY_END_WITH, failure
                assert got is frames[-1]


class Healthy:
    """A client that publishes and reads its own messages all the time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.count = 0

    async def keep_going(self) -> None:
        async with self.client.subscribe("healthy") as reader:
            while True:
                value = f"mine {self.count}"
                await self.client.publish("healthy", value)
                while (await reader.next(PATIENCE_SECONDS)).value != value.encode():
                    pass  # a bent batch may name any topic
                self.count += 1


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_bent_session_disturbs_the_broker(seed: int, data: Path) -> None:
    dice = random.Random(seed)
    async with serving(data) as served:
        number = await (await served.greeted()).open_topic("bent", durability="os")
        async with served.client(reconnect=False) as client:
            healthy = Healthy(client)
            going = asyncio.ensure_future(healthy.keep_going())
            for n in range(SESSIONS_A_SEED):
                frames = session_frames(number, producer_id=n % 3)
                if n % 2:
                    bent = bend(b"".join(frames), dice)
                else:
                    bent = bend_fields(frames, dice)
                check_answers(await say(served, bent, dice))
            await served.until(lambda: healthy.count > 0 or going.done())
            assert not going.done(), going.result()
            assert client.connected
            going.cancel()
    async with serving(data):
        pass  # what was stored is found whole again


@pytest.mark.parametrize("seed", range(4))
async def test_noise_behind_a_hello_disturbs_nobody(seed: int) -> None:
    dice = random.Random(seed)
    async with serving() as served:
        for _ in range(50):
            start = session_frames(1)[0]
            noise = dice.randbytes(dice.randrange(1, 2000))
            if dice.random() < 0.5:
                kind = dice.choice(list(FrameKind))
                noise = (len(noise) + 16).to_bytes(4, "little") + bytes([kind, 1]) + noise
            check_answers(await say(served, start + noise, dice))


def fields() -> list[str]:
    """The names of all fields of all messages."""
    kinds = [k for k in vars(messages).values() if isinstance(k, type)]
    structs = [k for k in kinds if issubclass(k, msgspec.Struct)]
    return sorted({name for struct in structs for name in struct.__struct_fields__})


# An array and a map that claim four thousand million entries, a string as long, and deep nesting.
CLAIMS = [b"\xdd" + b"\xff" * 4, b"\xdf" + b"\xff" * 4, b"\xdb" + b"\xff" * 4, b"\x91" * 20_000]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[:1].hex())
async def test_a_message_that_only_claims_to_be_large_costs_nothing(claim: bytes) -> None:
    named = [msgspec.msgpack.encode(name) + claim for name in fields()]
    payloads = [claim, b"\x81\xa1x" + claim, *(b"\x81" + field for field in named)]
    kinds = [kind for kind in FrameKind if kind not in (FrameKind.HELLO, FrameKind.BATCH)]
    dice = random.Random(1)
    async with serving() as served:
        tracemalloc.start()
        try:
            for kind in kinds:
                for payload in (*payloads[:2], *dice.sample(payloads, 4)):
                    peer = await served.greeted()
                    await peer.send(frame(kind, payload, request=3))
                    peer.finish_sending()
                    check_answers(await peer.rest())
                    peer.close()
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()
