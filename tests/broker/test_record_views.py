"""Views over whole records: rendered once, exact from any offset, and from any position that a
frame has named, whatever happened to the log meanwhile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fanlog.broker.messages.views import Renderer
from fanlog.config import BrokerOptions, LogOptions
from fanlog.format import web
from fanlog.format.batch import Batch
from fanlog.format.record_views import POSITION_EVERY
from fanlog.format.web_filters import make_filter
from fanlog.model import KIB, GapReason, Start
from tests.broker.cuts import cut_log
from tests.broker.deletions import delete_records
from tests.broker.stage import Publisher, Stage, stage
from tests.broker.test_compaction import compacted, put
from tests.broker.web_reader import WebPeer, follow
from tests.format.crafted import crafted
from tests.format.web_frames import events, frames

EARLIEST = Start("earliest")


def publish(on: Stage, *values: str, topic: str = "t", partition: int = 0) -> None:
    on.publish(topic, [value.encode() for value in values], partition=partition)
    on.run()


async def test_a_piece_is_rendered_once_and_all_are_sent_the_same_memory() -> None:
    with stage() as on:
        peers = [await follow(on, "t") for _ in range(5)]
        on.publish("t", [b"a", b"b"])
        on.publish("t", [b"c"])
        on.run()
        assert all(peer.values == ["a", "b", "c"] for peer in peers)
        assert len({id(peer.pieces[0]) for peer in peers}) == 1
        assert [len(peer.pieces) for peer in peers] == [1] * 5


async def test_all_views_of_a_turn_share_the_decoded_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[Batch] = []
    before = web.RenderedRecords.__init__

    def counted(self: web.RenderedRecords, batch: Batch) -> None:
        decoded.append(batch)
        before(self, batch)

    monkeypatch.setattr(web.RenderedRecords, "__init__", counted)
    with stage() as on:
        peers = [await follow(on, target) for target in ("t", "*", ">")]
        await follow(on, "t", kind="json", filter=make_filter({"key": "x"}))
        publish(on, "a", "b")
        assert [peer.values for peer in peers] == [["a", "b"]] * 3
        assert len(decoded) == 1


async def test_a_reader_that_takes_a_whole_piece_and_no_more_goes_on_behind_it() -> None:
    with stage() as on:
        slow, quick = await follow(on, "t"), await follow(on, "t")
        slow.room = 1
        for i in range(10):
            publish(on, f"{i}")
        assert slow.values == ["0"]
        slow.resume(on, room=1)
        assert slow.values == [str(i) for i in range(len(slow.values))]
        slow.resume(on)
        assert slow.values == quick.values == [str(i) for i in range(10)]
        publish(on, "live")
        assert slow.values[-2:] == ["9", "live"]
        assert slow.pieces[-1] is quick.pieces[-1]


@pytest.mark.parametrize("loop_bytes", [0, 256 * KIB])
@pytest.mark.parametrize("tail_bytes", [4 * KIB, 1024 * KIB])
async def test_nothing_before_the_wanted_offset_is_shown(
    data: Path, tail_bytes: int, loop_bytes: int
) -> None:
    """From the tail and from disk, on the loop and in a thread; each start has its own rendering,
    and those with the same start share it."""
    options = BrokerOptions(unpack_loop_bytes_max=loop_bytes)
    with stage(data, options=options, tail_bytes=tail_bytes) as on:
        for i in range(0, 40, 8):
            publish(on, *(f"{j:04d}" + "x" * 300 for j in range(i, i + 8)))
        peers = {
            offset: [await follow(on, "t", start=Start("offset", offset)) for _ in range(2)]
            for offset in (0, 3, 5, 8, 15, 39, 40)
        }
        on.run()
        for offset, two in peers.items():
            for peer in two:
                assert [seen[2] for seen in peer.seen] == list(range(offset, 40))
            if offset < 40:
                first, second = (peer.pieces[0] for peer in two)
                assert first.obj is second.obj  # type: ignore[union-attr]


async def test_a_topic_that_appears_grows_or_comes_again_is_read_in_a_view() -> None:
    with stage() as on:
        peer = await follow(on, "a.*")
        publish(on, "1", topic="a.x")
        on.grow("a.x", 2)
        publish(on, "2", topic="a.x", partition=1)
        on.core.delete_topic("a.x")
        on.run()
        publish(on, "3", topic="a.x")
        assert [(topic, partition, text) for topic, partition, _, text in peer.seen] == [
            ("a.x", 0, "1"),
            ("a.x", 1, "2"),
            ("a.x", 0, "3"),
        ]
        assert peer.lefts == ["a.x"]
        assert len({position.split(".")[2] for position in peer.positions.values()}) == 2


async def test_a_large_piece_is_rendered_in_a_thread_and_order_is_kept() -> None:
    with stage(options=BrokerOptions(unpack_loop_bytes_max=2000)) as on:
        peers = [await follow(on, "t") for _ in range(3)]
        expected: list[str] = []
        for i in range(20):
            values = [f"{i}.{j}" for j in range(500 if i % 3 == 0 else 2)]
            on.publish("t", [value.encode() for value in values])
            expected += values
            if i % 2:
                on.run()
        on.run()
        assert all(peer.values == expected for peer in peers)


async def test_a_batch_that_does_not_decode_is_one_gap_and_is_counted() -> None:
    with stage() as on:
        peer = await follow(on, "t")
        publish(on, "a")
        number = on.core.catalog.get("t").number
        on.core.take(crafted(b"\xff" * 64, count=3, topic=number), 0, Publisher())
        on.run()
        publish(on, "b")
        assert peer.values == ["a", "b"]
        (gap,) = peer.told
        assert gap["reason"] == "unreadable"
        assert [gap["from"].split(".")[0], gap["to"].split(".")[0]] == ["1", "4"]
        assert on.counters("t") == {"lost_records": 3}
        # It is rendered and counted again for who reads it back.
        again = await follow(on, "t", start=EARLIEST)
        assert (again.values, len(again.told)) == (["a", "b"], 1)


async def test_a_filter_is_evaluated_for_all_who_have_it_and_long_history_does_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stage() as on:
        passing = await follow(on, "t", filter=make_filter({"key": "k1"}))
        for i in range(400):
            put(on, "t", (b"k%d" % (i % 4), b"%d" % i + b"x" * 5000))
        assert [seen[2] for seen in passing.seen] == list(range(1, 400, 4))
        rendered: list[int] = []
        render = Renderer.render_kept

        def counted(self: Renderer, *args: Any) -> memoryview:
            rendered.append(1)
            return render(self, *args)

        monkeypatch.setattr(Renderer, "render_kept", counted)
        nothing = await follow(on, "t", filter=make_filter({"key": "none"}), start=EARLIEST)
        assert len(rendered) < 400  # the rest in later turns
        on.run()
        assert len(rendered) == 400
        assert (nothing.seen, nothing.told) == ([], [])
        for _ in range(POSITION_EVERY):
            put(on, "t", (b"x", b""))
        (told,) = nothing.told
        assert told["type"] == "position"
        assert told["position"].startswith(f"{POSITION_EVERY}.")
        back = await follow(on, "t", filter=make_filter({"key": "k1"}), positions=nothing.positions)
        assert (back.seen, back.gaps) == ([], [])


async def test_binary_and_sse_views_follow_beside_json(data: Path) -> None:
    class Raw(WebPeer):
        def _read(self, frame: dict[str, Any]) -> None: ...
        def _take(self, piece: Any) -> None:
            self.pieces.append(piece)

    with stage(data) as on:
        publish(on, "early")
        binary = await follow(on, "t", peer=Raw(), kind="binary", start=EARLIEST)
        sse = await follow(on, "t", peer=Raw(), kind="sse", start=EARLIEST)
        publish(on, "a", "b")
        shown = [payload for piece in binary.pieces for _, payload in frames(bytes(piece))]
        batches = [Batch(payload[1 + payload[0] :]) for payload in shown]
        assert [value for batch in batches for value in batch.values] == [b"early", b"a", b"b"]
        stream = events(b"".join(bytes(piece) for piece in sse.pieces))
        position = f"{on.core.epoch}.{on.core.catalog.get('t').number}"
        assert [event["id"] for event in stream] == [f"{i}.{position}" for i in (1, 2, 3)]


# Recovery


async def test_a_position_leads_on_after_a_restart_without_gap_or_repeat(data: Path) -> None:
    positions: dict[str, str] | None = None
    got: list[str] = []
    expected: list[str] = []
    for start in range(4):
        with stage(data) as on:
            peer = await follow(on, "t", positions=positions, start=EARLIEST)
            for i in range(3):
                publish(on, f"{start}.{i}.a", f"{start}.{i}.b")
                expected += [f"{start}.{i}.a", f"{start}.{i}.b"]
            positions = dict(peer.positions)
            publish(on, f"{start}.missed")
            expected.append(f"{start}.missed")
            assert peer.gaps == []
            got += peer.values[:-1]
    with stage(data) as on:
        peer = await follow(on, "t", positions=positions)
        on.run()
        got += peer.values
    assert got == expected


async def test_a_position_in_the_middle_of_a_batch_leads_on_exactly(data: Path) -> None:
    """A frame may be cut within a batch."""
    with stage(data) as on:
        publish(on, *(str(i) for i in range(10)))
        number, epoch = on.core.catalog.get("t").number, on.core.epoch
    with stage(data) as on:
        for offset in range(11):
            positions = {"t/0": f"{offset}.{epoch}.{number}"}
            peer = await follow(on, "t", positions=positions)
            on.run()
            assert peer.values == [str(i) for i in range(offset, 10)]
            assert peer.gaps == []


async def test_a_log_that_lost_its_end_is_one_gap(data: Path) -> None:
    with stage(data) as on:
        peer = await follow(on, "t")
        for i in range(10):
            publish(on, str(i))
        positions = dict(peer.positions)
    cut_log(data, "t", 6)
    with stage(data) as on:
        publish(on, *(f"new{i}" for i in range(20)))
        peer = await follow(on, "t", positions=positions)
        assert [(gap.first, gap.next, gap.reason) for gap in peer.gaps] == [
            (10, 6, GapReason.RESET)
        ]
        assert peer.values == [f"new{i}" for i in range(20)]
        again = await follow(on, "t", positions=peer.positions)
        assert (again.values, again.gaps) == ([], [])


async def test_a_topic_that_was_made_again_is_one_gap_and_all_of_it(data: Path) -> None:
    with stage(data) as on:
        peer = await follow(on, "t")
        publish(on, "a", "b", "c")
        positions = dict(peer.positions)
        on.core.delete_topic("t")
        on.run()
        publish(on, "1", "2", "3", "4")
        back = await follow(on, "t", positions=positions)
        assert back.values == ["1", "2", "3", "4"]
        assert [gap.reason for gap in back.gaps] == [GapReason.RESET]


async def test_what_was_deleted_is_one_gap(data: Path) -> None:
    with stage(data) as on:
        peer = await follow(on, "t")
        publish(on, "0")
        positions = dict(peer.positions)
        for i in range(1, 10):
            publish(on, str(i))
        delete_records(on.core, "t", {0: 5})
        back = await follow(on, "t", positions=positions)
        assert back.values == ["5", "6", "7", "8", "9"]
        assert [(gap.first, gap.next, gap.reason) for gap in back.gaps] == [
            (1, 5, GapReason.RETENTION)
        ]


async def test_a_topic_in_memory_is_one_gap_after_a_restart(data: Path) -> None:
    with stage(data, durability="memory") as on:
        peer = await follow(on, "t")
        publish(on, "a", "b")
        positions = dict(peer.positions)
    with stage(data, durability="memory") as on:
        back = await follow(on, "t", positions=positions)
        publish(on, "1", "2", "3")
        assert back.values == ["1", "2", "3"]
        assert [gap.reason for gap in back.gaps] == [GapReason.RESET]
        again = await follow(on, "t", positions=back.positions)
        assert (again.values, again.gaps) == ([], [])


async def test_positions_of_a_compacted_topic_lead_on_across_restarts(data: Path) -> None:
    """Compaction takes all records of some epochs. A reader that stops anywhere has a position
    that is still one of the log."""
    settings: dict[str, Any] = {"cleanup": "compact", "compact_after_bytes": 1}
    blocks = LogOptions(read_block_bytes=4 * KIB)
    for epoch in range(4):
        with stage(data, **settings) as on:
            put(on, "t", (b"k" if epoch else b"first", b"v%d" % epoch + b"x" * 5000))
            put(on, "t", (b"k", b"w%d" % epoch + b"x" * 5000))
    with stage(data, log_options=blocks, tail_bytes=4 * KIB, **settings) as on:
        put(on, "t", (b"k", b"last"))
        await compacted(on, "t")
        peer = await follow(on, "t", start=EARLIEST)
        on.run()
        assert [value[:4] for value in peer.values] == ["v0xx", "last"]
        assert len(peer.pieces) == 2
        reader = WebPeer()
        reader.send(peer.pieces[0])
        back = await follow(on, "t", positions=reader.positions)
        on.run()
        assert back.gaps == []
        assert back.values == ["last"]


@pytest.mark.parametrize("seed", range(6))
async def test_readers_that_stall_and_come_back_see_every_record_once(
    data: Path, seed: int
) -> None:
    rng = random.Random(seed)
    options = BrokerOptions(unpack_loop_bytes_max=rng.choice([0, 500, 256 * KIB]))
    log_options = LogOptions(read_block_bytes=4 * KIB)
    count = 0
    positions: list[dict[str, str] | None] = [None] * 5
    seen: list[list[tuple[int, int]]] = [[] for _ in positions]
    for _ in range(3):
        with stage(
            data, options=options, log_options=log_options, partitions=2, tail_bytes=4 * KIB
        ) as on:
            on.core.open_topic("t", create=True)
            peers: list[WebPeer | None] = [None] * len(positions)

            def leave(i: int, on: Stage = on, peers: list[WebPeer | None] = peers) -> None:
                peer = peers[i]
                if peer is not None and peer.subscription is not None:
                    on.core.subscriptions.remove(peer.subscription)
                    assert peer.gaps == []
                    seen[i] += [(partition, offset) for _, partition, offset, _ in peer.seen]
                    positions[i] = peer.positions
                peers[i] = None

            for _ in range(60):
                i = rng.randrange(len(peers))
                match rng.randrange(5):
                    case 0:
                        leave(i)
                        peers[i] = await follow(on, "t", positions=positions[i], start=EARLIEST)
                    case 1 if (peer := peers[i]) is not None:
                        peer.resume(on, rng.choice([None, 1, 3000]))
                    case _:
                        values = [b"%d" % (count + j) * 20 for j in range(rng.randrange(1, 20))]
                        count += len(values)
                        on.publish("t", values, partition=rng.randrange(2))
                        if rng.random() < 0.5:
                            on.run()
            on.run()
            for i in range(len(peers)):
                leave(i)
            ends = [p.visible_end for p in on.core.catalog.get("t").partitions]
    with stage(data) as on:
        everything = {(p, offset) for p, end in enumerate(ends) for offset in range(end)}
        for i, known in enumerate(positions):
            peer = await follow(on, "t", positions=known, start=EARLIEST)
            on.run()
            seen[i] += [(partition, offset) for _, partition, offset, _ in peer.seen]
            assert peer.gaps == []
            assert len(seen[i]) == len(everything)
            assert set(seen[i]) == everything
