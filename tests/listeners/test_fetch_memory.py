"""Many connections that ask for much and take nothing: together they hold no more than a limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fanlog.config import BrokerOptions
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.model import KIB, MIB
from tests.listeners.peers import Peer, Serving, one_message, request, serving

STUCK = 12
ANSWER = 512 * KIB
LIMIT = 2 * MIB


async def filled(served: Serving) -> tuple[Peer, int]:
    """A topic on disk with more than anybody's socket takes."""
    peer = await served.greeted()
    number = await peer.open_topic("t", durability="os", tail_bytes=4 * KIB)
    for _ in range(20):
        await peer.publish(one_message(number, bytes(100 * KIB)))
    return peer, number


async def stuck_peers(served: Serving, number: int) -> list[Peer]:
    """Peers that ask for many answers, and take none."""
    peers = [await served.greeted(receive_bytes=4096) for _ in range(STUCK)]
    for peer in peers:
        for i in range(50):
            wanted = messages.Fetch(number, 0, i % 10, bytes_max=ANSWER)
            await peer.send(request(FrameKind.FETCH, wanted, number=i + 1))
    return peers


def held(served: Serving) -> int:
    return sum(connection.kept_bytes for connection in served.listener._connections)


async def test_unread_answers_of_all_connections_stay_within_the_limit(data: Path) -> None:
    options = BrokerOptions(fetch_memory_bytes=LIMIT, fetch_stall_seconds=1000)
    async with serving(data, broker=options) as served:
        peer, number = await filled(served)
        stuck = await stuck_peers(served, number)
        memory = served.node.core.fetch_memory
        await served.until(lambda: memory.used > LIMIT - ANSWER)
        for _ in range(5):
            await peer.frames_until_pong()
            assert memory.used <= LIMIT
            assert held(served) <= LIMIT + STUCK * 64 * KIB
        # When they read after all, every one of them gets every answer.
        answers = await asyncio.gather(*(answers_of(some) for some in stuck))
        assert answers == [set(range(1, 51))] * STUCK
        assert memory.used == 0
        for some in (peer, *stuck):
            some.close()


async def answers_of(peer: Peer) -> set[int]:
    return {(await peer.until(FrameKind.FETCHED)).request for _ in range(50)}


async def test_stuck_peers_are_cut_off_where_others_wait_for_memory(data: Path) -> None:
    options = BrokerOptions(fetch_memory_bytes=LIMIT, fetch_stall_seconds=0.05)
    async with serving(data, broker=options) as served:
        peer, number = await filled(served)
        await stuck_peers(served, number)
        memory = served.node.core.fetch_memory
        await served.until(lambda: memory.used > LIMIT - ANSWER)
        for _ in range(5):
            assert (await peer.fetch(number, 3, bytes_max=ANSWER)).batches
