"""Views: another wire form of the same messages, rendered once for all who share it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fanlog.broker.messages.following import follow, unfollow
from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.broker.ports import SendBuffer
from fanlog.format.batch import encode_batch
from fanlog.format.checksum import crc32c
from fanlog.format.header import STAMPED
from fanlog.model import SlowPolicy
from tests.broker.stage import Peer, Publisher, Stage, stage


class Lines:
    """A view: each value on a line of its own."""

    def __init__(self, rank: int = 0, mark: bytes = b"") -> None:
        self.rank = rank
        self.mark = mark
        self.rendered: list[list[bytes | None]] = []

    def render(self, values: Sequence[bytes | None]) -> bytes:
        self.rendered.append([*values])
        return b"".join(self.mark + (value or b"-") + b"\n" for value in values)


class Remembering(Peer):
    """A peer that remembers which memory it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[SendBuffer] = []

    def send(self, piece: SendBuffer) -> int:
        self.pieces.append(piece)
        return super().send(piece)


def follower(
    made: Stage,
    view: Lines,
    peer: Peer | None = None,
    topic: str = "t",
    policy: SlowPolicy = SlowPolicy.SKIP,
) -> tuple[Peer, BrokerSubscription]:
    out = peer or Peer()
    subscription = BrokerSubscription(0, made.core.subscriptions, out, out, topic, policy=policy)
    follow(made.core.fan_out, subscription, made.core.open_topic(topic, create=True), view)
    return out, subscription


def test_a_piece_is_rendered_once_and_all_readers_are_sent_the_same_memory() -> None:
    with stage() as made:
        view = Lines()
        peers = [Remembering() for _ in range(5)]
        for peer in peers:
            follower(made, view, peer)
        made.publish("t", [b"a", b"b"])
        made.publish("t", [b"c"])
        made.run()
        assert view.rendered == [[b"a", b"b", b"c"]]
        assert all(peer.taken == b"a\nb\nc\n" for peer in peers)
        assert len({id(peer.pieces[0]) for peer in peers}) == 1


def test_views_of_one_partition_go_out_by_their_rank() -> None:
    with stage() as made:
        peer = Peer()
        follower(made, Lines(1, b"pattern "), peer)
        follower(made, Lines(0, b"channel "), peer)
        made.publish("t", [b"a"])
        made.run()
        assert peer.taken == b"channel a\npattern a\n"


async def test_native_readers_and_views_see_the_same_messages() -> None:
    with stage() as made:
        native = await made.subscribe("t")
        viewed, _ = follower(made, Lines())
        number = made.core.catalog.get("t").number
        made.core.take(encode_batch([b"a", None], topic=number), 0, Publisher())
        made.run()
        assert viewed.taken == b"a\n-\n"
        assert [v for batch in native.batches for v in batch.values] == [b"a", None]


def test_a_reader_that_was_blocked_goes_on_from_the_tail_in_its_view() -> None:
    with stage() as made:
        view = Lines()
        slow, quick = Peer(), Peer()
        follower(made, view, slow)
        follower(made, view, quick)
        slow.room = 3
        for i in range(10):
            made.publish("t", [b"%d" % i, b"x"])
            made.run()
        assert slow.taken == b"0\nx"
        slow.drain(made.core)
        assert slow.taken == quick.taken == b"".join(b"%d\nx\n" % i for i in range(10))
        made.publish("t", [b"live"])
        made.run()
        assert slow.taken.endswith(b"9\nx\nlive\n")


def test_those_that_are_behind_together_share_the_rendering() -> None:
    with stage() as made:
        view = Lines()
        slow = [Peer() for _ in range(4)]
        for peer in slow:
            follower(made, view, peer)
            peer.room = 0
        for i in range(5):
            made.publish("t", [b"%d" % i])
            made.run()
        view.rendered.clear()
        for peer in slow:
            peer.drain(made.core)
            assert peer.taken == b"0\n1\n2\n3\n4\n"
        # The first piece was held as it was rendered live; the others are read back once.
        assert view.rendered == [[b"1"], [b"2"], [b"3"], [b"4"]]


def test_a_reader_of_several_topics_gets_a_turn_in_the_order_of_publishing() -> None:
    with stage() as made:
        views = {name: Lines(mark=name.encode() + b" ") for name in "ab"}
        peers = [Remembering(), Remembering()]
        for peer in peers:
            for name, view in views.items():
                _, subscription = follower(made, view, peer, topic=name)
                subscription.cursors[0].several = True
        partitions = {name: made.core.catalog.get(name).partitions[0] for name in "ab"}
        for name, values in (("a", [b"1", b"2"]), ("b", [b"3"]), ("a", [b"4"])):
            made.core.renderer.record(partitions[name], values)
        for name, values in (("b", [b"3"]), ("a", [b"1", b"2", b"4"])):
            made.core.renderer.offer(partitions[name], 0, values)
            made.publish(name, values)
        made.run()
        assert [peer.taken for peer in peers] == [b"a 1\na 2\nb 3\na 4\n"] * 2
        assert len({id(peer.pieces[0]) for peer in peers}) == 1


def test_a_reader_of_several_topics_that_lags_gets_the_oldest_first() -> None:
    with stage() as made:
        peer = Peer()
        for name in "ab":
            _, subscription = follower(made, Lines(mark=name.encode()), peer, topic=name)
            subscription.cursors[0].several = True
        peer.room = 0
        for i in range(10):
            made.publish("ab"[i % 2], [b"%d" % i])
            made.run()
            made.runtime.time_us += 1
        peer.drain(made.core)
        assert peer.taken == b"".join(b"%c%d\n" % (b"ab"[i % 2], i) for i in range(10))
        made.publish("a", [b"live"])
        made.run()
        assert peer.taken.endswith(b"b9\nalive\n")


def test_a_reader_behind_the_tail_skips_and_is_counted() -> None:
    with stage(tail_bytes=4096) as made:
        peer, _ = follower(made, Lines())
        peer.room = 0
        for _ in range(20):
            made.publish("t", [b"x" * 1000])
            made.run()
        peer.drain(made.core)
        made.publish("t", [b"after"])
        made.run()
        assert peer.taken == b"x" * 1000 + b"\nafter\n"
        assert made.counters("t") == {"skips": 1, "skipped_records": 19}


def test_a_reader_that_chose_to_catch_up_reads_the_disk_in_its_view(data: Path) -> None:
    with stage(data, tail_bytes=4096) as made:
        peer, _ = follower(made, Lines(), policy=SlowPolicy.CATCH_UP)
        peer.room = 0
        for i in range(20):
            made.publish("t", [b"%02d" % i + b"x" * 1000])
            made.run()
        peer.drain(made.core)
        made.run()
        lines = peer.taken.split(b"\n")
        assert [line[:2] for line in lines[:-1]] == [b"%02d" % i for i in range(20)]
        assert made.counters("t") == {"catch_ups": 1}


def test_a_reader_that_chose_to_be_cut_off_is() -> None:
    with stage(tail_bytes=4096) as made:
        peer, _ = follower(made, Lines(), policy=SlowPolicy.DISCONNECT)
        peer.room = 0
        for _ in range(20):
            made.publish("t", [b"x" * 1000])
            made.run()
        made.core.fan_out.sweep()
        assert peer.ended is not None
        assert made.counters("t") == {"disconnects": 1}


def test_a_batch_whose_columns_do_not_fit_is_counted_and_stops_nobody() -> None:
    with stage() as made:
        peer, _ = follower(made, Lines())
        number = made.core.open_topic("t", create=True).number
        sound = encode_batch([b"a", b"b"], topic=number)
        body = sound[56:64] + b"\xff" * (len(sound) - 64)
        broken = sound[:52] + crc32c(body).to_bytes(4, "little") + body
        assert len(broken) == len(sound) > STAMPED.size
        made.core.take(broken + encode_batch([b"c"], topic=number), 0, Publisher())
        made.run()
        assert peer.taken == b"c\n"
        assert made.counters("t") == {"lost_records": 2}


def test_who_unfollows_gets_nothing_more_and_leaves_nothing_behind() -> None:
    with stage() as made:
        view = Lines()
        peer, subscription = follower(made, view)
        partition = made.core.catalog.get("t").partitions[0]
        assert partition.readers == 1
        peer.room = 0
        made.publish("t", [b"a"])
        made.run()
        unfollow(made.core.fan_out, subscription, partition.topic)
        peer.drain(made.core)
        made.publish("t", [b"b"])
        made.run()
        assert peer.taken == b"a\n"
        assert partition.audience is not None
        assert not partition.audience.viewed
        assert (partition.readers, subscription.cursors) == (0, [])


def test_values_that_were_offered_are_used_only_where_they_are_all_of_the_piece() -> None:
    with stage() as made:
        view = Lines()
        follower(made, view)
        partition = made.core.catalog.get("t").partitions[0]
        made.core.renderer.offer(partition, partition.next_offset, [b"a"])
        made.publish("t", [b"a"])
        made.publish("t", [b"native"])
        made.run()
        made.core.renderer.offer(partition, 77, [b"stale"])
        made.publish("t", [b"c"])
        made.run()
        assert view.rendered == [[b"a", b"native"], [b"c"]]
