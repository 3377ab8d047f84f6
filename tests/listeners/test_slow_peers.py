"""Peers that do not read. What is kept for one is bounded, and nobody else pays for it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import fanlog
from fanlog.format import messages
from fanlog.format.batch import Batch, encode_batch
from fanlog.format.frames import ACK_ENTRY, FrameKind, frame
from fanlog.listeners.native import NativeSession
from fanlog.model import Start
from tests.listeners.peers import (
    PATIENCE_SECONDS,
    Peer,
    Serving,
    acks_of,
    one_message,
    request,
    serving,
)

LIMIT = 16 * 1024
RECEIVE = 64 * 1024


async def send_until_paused(served: Serving, peer: Peer, data: bytes) -> int:
    """Sends `data` over and over until the broker reads no more; returns the bytes taken."""
    connection = served.connection_of(peer)
    sent = 0
    while not connection.paused:
        with contextlib.suppress(BlockingIOError):
            sent += peer.sock.send(data[sent % len(data) :])
        await asyncio.sleep(0)
    return sent


async def test_a_publisher_that_reads_no_acknowledgements_is_paused() -> None:
    async with serving(control_bytes_max=LIMIT, receive_bytes=RECEIVE) as served:
        peer = await served.greeted(receive_bytes=4096)
        number = await peer.open_topic("t", tail_bytes=64 * 1024)
        batch = one_message(number)
        sent = await send_until_paused(served, peer, batch * 1000)
        connection = served.connection_of(peer)
        a_turn = RECEIVE // len(batch) * ACK_ENTRY.size + 1024
        # Beside the limit: what filled the socket, what went past the limit, and what was read
        # before that was noticed.
        assert LIMIT < connection.kept_bytes <= LIMIT + 3 * a_turn
        await served.check_works()
        # It reads at last: all of it was stored, and every batch has its answer.
        rest = (batch * 1000)[sent % (1000 * len(batch)) :]
        cut = -sent % len(batch)
        finishing = asyncio.ensure_future(peer.send(rest[:cut]))
        offsets: list[int] = []
        while len(offsets) < (sent + cut) // len(batch):
            offsets += [ack.base_offset for ack in acks_of(await peer.expect(FrameKind.ACK))]
        await finishing
        assert offsets == list(range(len(offsets)))
        assert not connection.paused


async def test_answers_to_many_requests_in_one_go_stay_within_the_limit() -> None:
    async with serving(control_bytes_max=LIMIT, receive_bytes=RECEIVE) as served:
        peer = await served.greeted(receive_bytes=4096)
        for n in range(100):
            await peer.open_topic(f"topic.{n}")
        asked = request(FrameKind.LIST_TOPICS, messages.ListTopics(), 5)
        answer = await peer.ask(FrameKind.LIST_TOPICS, messages.ListTopics())
        await send_until_paused(served, peer, asked * 500)
        connection = served.connection_of(peer)
        assert connection.kept_bytes <= LIMIT + 2 * len(answer.payload)
        await served.check_works()


async def test_requests_that_waited_for_room_are_all_answered_in_order() -> None:
    async with serving(control_bytes_max=LIMIT, receive_bytes=RECEIVE) as served:
        peer = await served.greeted(receive_bytes=4096)
        for n in range(100):
            await peer.open_topic(f"topic.{n}")
        wanted = messages.ListTopics()
        asked = [request(FrameKind.LIST_TOPICS, wanted, 1000 + n) for n in range(1000)]
        sending = asyncio.ensure_future(peer.send(b"".join(asked)))
        await served.until(lambda: served.connection_of(peer).paused)
        answers = [(await peer.expect(FrameKind.OK)).request for _ in asked]
        await sending
        assert answers == list(range(1000, 2000))


async def block(served: Serving, peer: Peer, publisher: Peer, number: int) -> int:
    """Publishes until the subscriber's socket is full; returns how many batches that took."""
    connection = served.connection_of(peer)
    batch = one_message(number, b"x" * 60_000)
    count = 0
    while not connection.blocked:
        await publisher.publish(batch)
        count += 1
    return count


async def test_a_flood_of_small_requests_is_not_read_faster_than_it_is_answered() -> None:
    async with serving(receive_bytes=RECEIVE) as served:
        peer = await served.greeted()
        connection = served.connection_of(peer)
        session = connection.session
        assert isinstance(session, NativeSession)
        ping, count, most = frame(FrameKind.PING, request=1), 30_000, 0
        sending = asyncio.create_task(peer.send(ping * count))
        for _ in range(count):
            await peer.expect(FrameKind.PONG)
            most = max(most, session._cutter.kept_bytes)
        await sending
        assert most <= RECEIVE + len(ping)


async def test_requests_under_way_are_bounded_and_the_rest_is_answered_later() -> None:
    async with serving(requests_max=3) as served:
        peer = await served.greeted()
        await peer.open_topic("t")
        session = served.connection_of(peer).session
        assert isinstance(session, NativeSession)
        wanted = messages.FindOffsets("t", Start("time", 1))
        asked = [request(FrameKind.FIND_OFFSETS, wanted, i + 1) for i in range(50)]
        await peer.send(b"".join(asked))
        answered = set()
        for _ in asked:
            answered.add((await peer.expect(FrameKind.OK)).request)
            assert len(session._tasks) <= 3
        assert answered == set(range(1, 51))


@pytest.mark.parametrize("policy", ["catch-up", "skip", "disconnect"])
async def test_a_subscriber_that_never_reads_costs_one_piece_and_is_told_what_it_missed(
    policy: str,
) -> None:
    async with serving() as served:
        peer = await served.greeted(receive_bytes=4096)
        publisher = await served.greeted()
        number = await publisher.open_topic("t", tail_bytes=64 * 1024)
        wanted = messages.Subscribe(target="t", policy=fanlog.SlowPolicy(policy))
        await peer.ask(FrameKind.SUBSCRIBE, wanted, aux=3)
        async with served.client() as client, client.subscribe("t") as healthy:
            count = await block(served, peer, publisher, number)
            kept = served.connection_of(peer).kept_bytes
            for _ in range(100):
                await publisher.publish(one_message(number, b"y" * 10_000))
            # A reader that is cut off is told so.
            reason = 1000 if policy == "disconnect" else 0
            assert kept <= served.connection_of(peer).kept_bytes <= kept + reason
            assert kept < 70_000
            for offset in range(count + 100):
                assert (await healthy.next(PATIENCE_SECONDS)).offset == offset
        if policy == "disconnect":
            failure = await peer.fault()
            assert failure.code == "slow_reader"
            return
        # It reads at last: what it gets and what it is told that it missed is everything.
        offset, gaps = 0, []
        while offset < count + 100:
            got = await peer.frame()
            assert got is not None
            if got.kind is FrameKind.BATCH:
                batch = Batch(got.payload)
                assert batch.base_offset == offset
                offset = batch.next_offset
            elif got.kind is FrameKind.GAP:
                gap = got.read(messages.GapNotice)
                assert gap.first == offset
                offset = gap.next
                gaps.append(gap.reason)
        assert gaps == ["skipped" if policy == "skip" else "retention"]


async def test_topics_that_come_and_go_cost_a_subscriber_that_never_reads_a_bounded_amount() -> (
    None
):
    async with serving(control_bytes_max=LIMIT) as served:
        peer = await served.greeted(receive_bytes=4096)
        publisher = await served.greeted()
        number = await publisher.open_topic("t")
        wanted = messages.Subscribe(target=">", wildcard=True)
        await peer.ask(FrameKind.SUBSCRIBE, wanted, aux=3)
        await block(served, peer, publisher, number)
        connection = served.connection_of(peer)
        for _ in range(1000):
            await publisher.open_topic("comes.and.goes")
            await publisher.ask(FrameKind.DELETE_TOPIC, messages.NamedTopic("comes.and.goes"))
        assert connection.kept_bytes <= 70_000 + LIMIT


async def test_a_reader_of_one_byte_a_time_gets_everything() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.ask(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), aux=3)
        await peer.send(encode_batch([b"a", b"b"], topic=number))
        loop = asyncio.get_running_loop()
        got = b""
        while len(got) < 16 + 88 + 16 + 32:
            got += await asyncio.wait_for(loop.sock_recv(peer.sock, 1), PATIENCE_SECONDS)
        assert b"ab" in got
