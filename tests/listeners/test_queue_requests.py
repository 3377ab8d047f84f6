"""What a peer says as a worker, frame by frame, and what it may not say."""

from __future__ import annotations

import pytest

from fanlog.broker.queues.queues import Queues
from fanlog.format import messages
from fanlog.format.frames import FrameKind, read_lease
from fanlog.format.messages import HeldJobs, JobOutcome, Settle, Settled, Work, Working
from tests.listeners.peers import PATIENCE_SECONDS, Peer, Serving, one_message, request, serving

WORKER = 7
FAR = 2**64 - 1


def wanting(**given: object) -> Work:
    return Work(**({"queue": "q", "worker": "w", "target": "t", "prefetch": 9} | given))  # type: ignore[arg-type]


async def test_a_worker_gets_its_topics_then_a_lease_then_the_batch() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(one_message(number))
        await peer.send(request(FrameKind.WORK, wanting(), 5, WORKER))
        answer = await peer.expect(FrameKind.OK)
        assert answer.read(Working).settings.visibility_seconds == 30
        joined = await peer.expect(FrameKind.JOINED)
        assert (joined.aux, joined.read(messages.Joined).name) == (WORKER, "t")
        assert (await peer.expect(FrameKind.FEED)).aux == WORKER
        lease = read_lease(memoryview((await peer.expect(FrameKind.LEASE)).payload))
        assert lease == (number, 0, 1, 0, 0, 1, True)
        await peer.expect(FrameKind.BATCH)
        settle = Settle((JobOutcome(number, 0, 0, 0, 1),))
        await peer.send(request(FrameKind.SETTLE, settle, 6, WORKER))
        settled = await peer.expect(FrameKind.OK)
        assert (settled.request, settled.read(Settled)) == (6, Settled(()))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"queue": ""}, "invalid_name"),
        ({"worker": ""}, "invalid_name"),
        ({"worker": "w" * 300}, "invalid_name"),
        ({"prefetch": 0}, "invalid_argument"),
        ({"prefetch": -5}, "invalid_argument"),
        ({"prefetch": FAR}, "limit"),
        ({"settings": {"ordered": "maybe"}}, "invalid_argument"),
        ({"settings": {"colour": "red"}}, "invalid_argument"),
        ({"target": "_fanlog.queues"}, "invalid_name"),
        ({"target": "a.>.b", "wildcard": True}, "invalid_name"),
        ({"target": "absent", "missing": "fail"}, "topic_not_found"),
    ],
)
async def test_work_that_cannot_be_had_is_refused_and_leaves_nothing(
    given: dict[str, object], code: str
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        answer = await peer.ask(FrameKind.WORK, wanting(**given), WORKER)
        assert answer.failure.code == code
        assert served.node.core.queues.names() == []
        assert (await peer.ask(FrameKind.WORK, wanting(), WORKER)).kind is FrameKind.OK


async def test_a_number_that_is_in_use_is_refused() -> None:
    async with serving() as served:
        peer = await served.greeted()
        assert (await peer.ask(FrameKind.WORK, wanting(), WORKER)).kind is FrameKind.OK
        again = await peer.ask(FrameKind.WORK, wanting(worker="other"), WORKER)
        assert again.failure.code == "invalid_argument"


async def test_outcomes_of_nobody_are_refused() -> None:
    async with serving() as served:
        peer = await served.greeted()
        answer = await peer.ask(FrameKind.SETTLE, Settle(()), WORKER)
        assert answer.failure.code == "lease_lost"


@pytest.mark.parametrize("verb", [0, 1, 2, 3, 4, -1])
@pytest.mark.parametrize("place", [(1, 0), (-1, 0), (FAR, FAR)], ids=str)
@pytest.mark.parametrize("ends", [(0, 0), (5, 1), (1, FAR)])
async def test_outcomes_on_what_there_is_not_are_late_and_harm_nothing(
    verb: int, place: tuple[int, int], ends: tuple[int, int]
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.ask(FrameKind.WORK, wanting(), WORKER)
        where = (number if place[0] == 1 else place[0], place[1])
        settle = Settle((JobOutcome(*where, verb, *ends, FAR, "why"),))
        late = await settled(peer, settle)
        assert late.late
        await peer.publish(one_message(number))
        await peer.until(FrameKind.LEASE)


async def settled(peer: Peer, settle: Settle) -> Settled:
    await peer.send(request(FrameKind.SETTLE, settle, 9, WORKER))
    return (await peer.until(FrameKind.OK)).read(Settled)


async def test_holds_of_what_nobody_has_harm_nothing() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(one_message(number))
        holds = (HeldJobs(number, 0, 0, FAR), HeldJobs(FAR, FAR, 3, 1), HeldJobs(-1, -1, -1, -1))
        await peer.send(request(FrameKind.WORK, wanting(holds=holds), 5, WORKER))
        await peer.until(FrameKind.LEASE)


@pytest.mark.parametrize("kind", [FrameKind.WORK, FrameKind.SETTLE])
async def test_a_payload_that_does_not_fit_ends_the_connection(kind: FrameKind) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(request(kind, messages.Goodbye("no"), 1, WORKER))
        assert (await peer.fault()).code == "bad_frame"


async def hold_one_of_two(served: Serving) -> tuple[Peer, Peer]:
    """A worker with a job, and another with none."""
    first, second = await served.greeted(), await served.greeted()
    number = await first.open_topic("t")
    await first.ask(FrameKind.WORK, wanting(worker="first"), WORKER)
    await first.send(one_message(number))
    await first.until(FrameKind.LEASE)
    await second.ask(FrameKind.WORK, wanting(worker="second"), WORKER)
    return first, second


@pytest.mark.parametrize("kind", [FrameKind.GOODBYE, FrameKind.UNSUBSCRIBE])
async def test_a_farewell_gives_the_jobs_to_others(kind: FrameKind) -> None:
    async with serving() as served:
        first, second = await hold_one_of_two(served)
        await first.send(request(kind, messages.Goodbye(), 77, WORKER))
        await second.until(FrameKind.LEASE)


async def test_with_a_lost_connection_a_worker_keeps_its_jobs_for_now() -> None:
    async with serving() as served:
        first, second = await hold_one_of_two(served)
        first.close()
        queues = served.node.core.queues
        await served.until(lambda: len(described(queues)) == 1)
        kinds = {got.kind for got in await second.frames_until_pong()}
        assert FrameKind.LEASE not in kinds


def described(queues: Queues) -> list[str]:
    """Who is there."""
    queue = queues.find("q")
    return [] if queue is None else [worker.id for worker in queue.present()]


async def test_a_worker_that_reads_nothing_is_sent_no_more_and_holds_up_nobody() -> None:
    async with serving() as served:
        stuck = await served.greeted(receive_bytes=4096)
        number = await stuck.open_topic("t", message_bytes_max=1 << 20)
        await stuck.send(request(FrameKind.WORK, wanting(worker="stuck", prefetch=1000), 5, WORKER))
        async with served.client() as client, client.work("t", queue="q") as worker:
            await served.until(lambda: len(described(served.node.core.queues)) == 2)
            await client.publish_many("t", [bytes(300_000) for _ in range(40)])
            queue = served.node.core.queues.find("q")
            assert queue is not None
            part = queue.partitions[number, 0]
            done = 0
            while done < 40 - queue.in_hand.counts.get("stuck", 0):
                await (await worker.next(PATIENCE_SECONDS)).ack()
                done += 1
            held = queue.in_hand.counts["stuck"]
            assert held < 25
            assert part.jobs.leased == held
            # Once it reads, it gets what it was sent, and more.
            await client.publish("t", b"one more")
            leases = 0
            while leases < held:
                await stuck.until(FrameKind.LEASE)
                leases += 1
