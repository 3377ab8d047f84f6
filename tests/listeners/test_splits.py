"""Where the network cuts a session's bytes makes no difference to what it means."""

from __future__ import annotations

import asyncio

from fanlog.format.frames import FrameKind, frame
from tests.listeners.peers import Frame, Peer, Serving, serving
from tests.listeners.session import answered, session_frames


async def play(peer: Peer, pieces: list[bytes]) -> list[Frame]:
    """Sends the pieces one by one, and takes the answers up to the end of the session."""
    for piece in pieces:
        await peer.send(piece)
        for _ in range(3):  # so that the broker reads this piece by itself
            await asyncio.sleep(0)
    frames: list[Frame] = []
    while not answered(frames):
        got = await peer.frame()
        assert got is not None, frames
        assert got.kind not in (FrameKind.ERROR, FrameKind.REFUSED), got
        frames.append(got)
    await peer.send(frame(FrameKind.GOODBYE))
    assert await peer.rest() == []
    return frames


async def topic_number(served: Serving) -> int:
    return await (await served.greeted()).open_topic("bent")


async def test_every_position_to_split_a_session_at_works() -> None:
    async with serving() as served:
        number = await topic_number(served)
        size = len(b"".join(session_frames(number)))
        for at in range(1, size):
            data = b"".join(session_frames(number, producer_id=at))
            peer = await served.dial()
            await play(peer, [data[:at], data[at:]])
            peer.close()


async def test_a_session_works_frame_by_frame_and_in_one_go() -> None:
    async with serving() as served:
        number = await topic_number(served)
        frames = session_frames(number, producer_id=1)
        await play(await served.dial(), frames)
        frames = session_frames(number, producer_id=2)
        await play(await served.dial(), [b"".join(frames)])


async def test_a_session_that_drips_in_one_byte_at_a_time_works() -> None:
    async with serving() as served:
        data = b"".join(session_frames(await topic_number(served), producer_id=1))
        await play(await served.dial(), [data[i : i + 1] for i in range(len(data))])


async def test_many_sessions_that_drip_side_by_side_do_not_mix() -> None:
    async with serving() as served:
        number = await topic_number(served)
        sessions = [b"".join(session_frames(number, producer_id=n)) for n in range(1, 21)]
        peers = [await served.dial() for _ in sessions]
        for at in range(0, max(map(len, sessions)), 7):
            for peer, data in zip(peers, sessions, strict=True):
                await peer.send(data[at : at + 7])
            await asyncio.sleep(0)
        for peer in peers:
            waited_for = set(range(1, 9))
            while waited_for:
                got = await peer.frame()
                assert got is not None
                assert got.kind not in (FrameKind.ERROR, FrameKind.REFUSED), got
                waited_for.discard(got.request)
