"""Requests that cannot be answered as asked get an error of their own; the connection goes on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fanlog import TopicInfo
from fanlog.format import messages
from fanlog.format.batch import encode_batch
from fanlog.format.frames import FrameKind, credit_frame
from fanlog.model import INTERNAL_PREFIX, Start
from tests.awaited import awaited
from tests.listeners.peers import Frame, Peer, one_message, request, serving


async def expect_error(peer: Peer, kind: FrameKind, message: msgspec.Struct, code: str) -> None:
    answer = await peer.ask(kind, message)
    assert answer.failure.code == code
    assert (await peer.ask(FrameKind.PING)).kind is FrameKind.PONG


# Fetch


@pytest.mark.parametrize(
    ("number", "partition"),
    [(99, 0), (0, 0), (1, 1), (1, -1), (-1, 0), (1, 65536), (2**63, 0), (1, 2**64 - 1)],
)
async def test_a_fetch_of_an_unknown_topic_or_partition_fails(
    data: Path, number: int, partition: int
) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        assert await peer.open_topic("t", durability="os") == 1
        await peer.publish(one_message(1))
        wanted = messages.Fetch(number, partition, 0)
        await expect_error(peer, FrameKind.FETCH, wanted, "partition_not_found")


@pytest.mark.parametrize("durability", ["memory", "os"])
@pytest.mark.parametrize("offset", [-1, -(2**63)])
async def test_a_fetch_below_the_first_offset_fails(
    data: Path, offset: int, durability: str
) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability=durability)
        await peer.publish(one_message(number))
        wanted = messages.Fetch(number, 0, offset)
        await expect_error(peer, FrameKind.FETCH, wanted, "offset_out_of_range")


@pytest.mark.parametrize("offset", [1, 2, 2**40, 2**64 - 1])
async def test_a_fetch_at_or_past_the_end_brings_no_batch_and_says_where_the_end_is(
    offset: int,
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(one_message(number))
        assert await peer.fetch(number, offset) == (1, 0, [])


@pytest.mark.parametrize("bytes_max", [-1, 0, 1])
async def test_a_fetch_brings_one_piece_at_least(bytes_max: int) -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        for value in (b"a", b"b"):
            await peer.publish(one_message(number, value))
        got = await peer.fetch(number, 0, bytes_max=bytes_max)
        assert [batch.values for batch in got.batches] == [[b"a"]]


async def test_a_fetch_inside_a_batch_brings_the_whole_batch() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(encode_batch([b"a", b"b", b"c"], topic=number))
        got = await peer.fetch(number, 2)
        assert [(batch.base_offset, len(batch)) for batch in got.batches] == [(0, 3)]


async def test_a_fetch_that_waits_is_answered_when_something_comes() -> None:
    async with serving() as served:
        peer, publisher = await served.greeted(), await served.greeted()
        number = await peer.open_topic("t")
        await peer.send(request(FrameKind.FETCH, messages.Fetch(number, 0, 0, wait_ms=15_000), 7))
        assert (await peer.ask(FrameKind.PING)).kind is FrameKind.PONG
        await publisher.publish(one_message(number, b"at last"))
        got = await peer.expect(FrameKind.FETCHED)
        assert got.request == 7
        assert b"at last" in got.payload


@pytest.mark.parametrize("wait_ms", [-1, 0, 1, 2**63])
async def test_a_fetch_that_waits_in_vain_is_answered_empty(wait_ms: int) -> None:
    async with serving(fetch_wait_seconds_max=0.02) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        assert await peer.fetch(number, 0, wait_ms=wait_ms) == (0, 0, [])


async def test_fetches_that_waited_in_vain_leave_nothing_behind() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("quiet")
        for _ in range(50):
            await peer.fetch(number, 0, wait_ms=1)
        partition = served.node.core.catalog.partition(number, 0)
        assert not awaited(partition)


async def test_a_fetch_that_waits_ends_with_its_topic() -> None:
    async with serving() as served:
        peer, other = await served.greeted(), await served.greeted()
        number = await peer.open_topic("t")
        await peer.send(request(FrameKind.FETCH, messages.Fetch(number, 0, 0, wait_ms=15_000), 7))
        assert (await peer.ask(FrameKind.PING)).kind is FrameKind.PONG
        await other.ask(FrameKind.DELETE_TOPIC, messages.NamedTopic("t"))
        assert (await peer.expect(FrameKind.ERROR)).failure.code == "topic_not_found"


# Topics


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\x7fb", "orders.*", ">", "_fanlog.mine"])
async def test_a_topic_of_an_impossible_name_is_not_made(name: str) -> None:
    async with serving() as served:
        peer = await served.greeted()
        for kind, wanted in (
            (FrameKind.OPEN_TOPIC, messages.OpenTopic(name)),
            (FrameKind.CREATE_TOPIC, messages.CreateTopic(name)),
        ):
            await expect_error(peer, kind, wanted, "invalid_name")
        code = "topic_not_found" if name == "_fanlog.mine" else "invalid_name"
        await expect_error(peer, FrameKind.SUBSCRIBE, messages.Subscribe(target=name), code)


async def test_what_a_request_names_must_exist() -> None:
    nobody, start = messages.NamedTopic("nobody"), Start()
    async with serving() as served:
        peer = await served.greeted()
        for kind, wanted in (
            (FrameKind.OPEN_TOPIC, messages.OpenTopic("nobody", create=False)),
            (FrameKind.SUBSCRIBE, messages.Subscribe(target="nobody", missing="fail")),
            (FrameKind.DESCRIBE_TOPIC, nobody),
            (FrameKind.DELETE_TOPIC, nobody),
            (FrameKind.FIND_OFFSETS, messages.FindOffsets("nobody", start)),
            (FrameKind.COMMIT, messages.CommitOffsets("me", (messages.Position("nobody", 0, 0),))),
        ):
            await expect_error(peer, kind, wanted, "topic_not_found")


@pytest.mark.parametrize(
    "settings",
    [
        {"partitions": 0},
        {"partitions": 5000},
        {"partitions": "1"},
        {"durability": "hope"},
        {"message_bytes_max": 0},
        {"colour": "blue"},
    ],
    ids=str,
)
async def test_settings_that_a_topic_can_not_have_are_refused(
    settings: dict[str, int | str],
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        wanted = messages.CreateTopic("t", settings)
        await expect_error(peer, FrameKind.CREATE_TOPIC, wanted, "invalid_argument")


async def test_the_brokers_own_topics_take_no_batches_from_clients(data: Path) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        await peer.open_topic("t")
        await peer.ask(
            FrameKind.COMMIT, messages.CommitOffsets("me", (messages.Position("t", 0, 0),))
        )
        answer = await peer.ask(FrameKind.LIST_TOPICS, messages.ListTopics(internal=True))
        topics = {topic.name: topic.number for topic in answer.read(messages.TopicPage).topics}
        await peer.send(one_message(topics[INTERNAL_PREFIX + "cursors"], b"no position"))
        refused = (await peer.expect(FrameKind.REFUSED)).read(messages.Refused)
        assert refused.code in ("topic_not_found", "invalid_name", "invalid_argument")
    async with serving(data) as served:  # and it starts again
        peer = await served.greeted()
        answer = await peer.ask(FrameKind.COMMITTED, messages.FindCommitted("me"))
        assert len(answer.read(messages.Positions).positions) == 1


async def test_a_message_past_the_topics_limit_is_refused_and_the_next_is_taken() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", message_bytes_max=1000)
        large = one_message(number, b"x" * 10_000, producer_id=5)
        await peer.send(large)
        refused = (await peer.expect(FrameKind.REFUSED)).read(messages.Refused)
        assert (refused.code, refused.expected_sequence) == ("message_too_large", 0)
        assert (await peer.publish(one_message(number, producer_id=5))).base_offset == 0


# Sequences


@pytest.mark.parametrize("sequence", [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
async def test_any_first_sequence_is_settled_without_a_fault_of_the_broker(
    data: Path, sequence: int
) -> None:
    async with serving(data) as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", durability="os")
        for wanted in (sequence, sequence, 0, sequence):
            await peer.send(one_message(number, producer_id=5, first_sequence=wanted))
            answer = await peer.frame()
            assert answer is not None
            if answer.kind is FrameKind.ERROR:
                assert answer.failure.code == "bad_format"
                return
            assert answer.kind in (FrameKind.ACK, FrameKind.REFUSED)
    async with serving(data):
        pass


# Subscriptions


async def subscribe(peer: Peer, key: int, target: str = "t", **wanted: object) -> Frame:
    message = messages.Subscribe(target=target, **wanted)  # pyright: ignore[reportArgumentType]
    return await peer.ask(FrameKind.SUBSCRIBE, message, aux=key)


async def test_a_subscription_number_in_use_is_refused_and_free_again_later() -> None:
    async with serving() as served:
        peer = await served.greeted()
        assert (await subscribe(peer, 3)).kind is FrameKind.OK
        assert (await subscribe(peer, 3)).failure.code == "invalid_argument"
        assert (await peer.ask(FrameKind.UNSUBSCRIBE, aux=3)).kind is FrameKind.OK
        assert (await subscribe(peer, 3)).kind is FrameKind.OK
        assert len(served.node.core.subscriptions) == 1


async def test_a_subscription_number_used_twice_in_one_go_is_refused_the_second_time() -> None:
    async with serving() as served:
        peer = await served.greeted()
        twice = [request(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), n, 3) for n in (8, 9)]
        await peer.send(b"".join(twice))
        answers = {got.request: got for got in [await peer.frame(), await peer.frame()] if got}
        assert answers[8].kind is FrameKind.OK
        assert answers[9].failure.code == "invalid_argument"
        assert len(served.node.core.subscriptions) == 1


async def test_unsubscribing_right_behind_a_subscribe_ends_it() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        both = request(FrameKind.SUBSCRIBE, messages.Subscribe(target="t"), 8, 3)
        both += request(FrameKind.UNSUBSCRIBE, messages.Goodbye(), 9, 3)
        await peer.send(both)
        answers = {got.request for got in [await peer.frame(), await peer.frame()] if got}
        assert answers == {8, 9}
        assert len(served.node.core.subscriptions) == 0
        await peer.publish(one_message(number))
        assert (await peer.frames_until_pong()) == []


@pytest.mark.parametrize("partition", [1, -1, 2**40])
async def test_a_subscription_to_an_unknown_partition_fails(partition: int) -> None:
    async with serving() as served:
        peer = await served.greeted()
        if partition == 1:
            await peer.open_topic("t")
        answer = await subscribe(peer, 3, partitions=(0, partition))
        assert answer.failure.code == "partition_not_found"
        assert len(served.node.core.subscriptions) == 0


@pytest.mark.parametrize(("value", "code"), [(2, "offset_out_of_range"), (-1, "invalid_argument")])
async def test_a_subscription_from_an_impossible_offset_fails_and_leaves_no_reader(
    value: int, code: str
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t", partitions=2)
        await peer.publish(encode_batch([b"a", b"b"], topic=number, partition=0))
        answer = await subscribe(peer, 3, start=Start("offset", value))
        assert answer.failure.code == code
        info = await peer.ask(FrameKind.DESCRIBE_TOPIC, messages.NamedTopic("t"))
        assert [p.readers for p in info.read(TopicInfo).partitions] == [0, 0]


async def test_a_pattern_takes_no_offset_and_no_partitions() -> None:
    async with serving() as served:
        peer = await served.greeted()
        for wanted in ({"start": Start("offset", 1)}, {"partitions": (0,)}):
            answer = await subscribe(peer, 3, "a.>", wildcard=True, **wanted)
            assert answer.failure.code == "invalid_argument"
        answer = await subscribe(peer, 3, "a.>.b", wildcard=True)
        assert answer.failure.code == "invalid_name"


async def test_credit_and_unsubscribe_for_an_unknown_subscription_do_nothing() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(credit_frame(77, 1 << 40))
        assert (await peer.ask(FrameKind.UNSUBSCRIBE, aux=77)).kind is FrameKind.OK


async def test_one_subscription_more_than_the_limit_is_refused() -> None:
    async with serving(subscriptions_max=2) as served:
        peer = await served.greeted()
        await peer.open_topic("t")
        wanted = messages.Subscribe(target="t")
        asked = [request(FrameKind.SUBSCRIBE, wanted, 100 + n, n) for n in range(3)]
        await peer.send(b"".join(asked))
        answers = {got.request: got for got in [await peer.frame() for _ in range(3)] if got}
        assert [answers[n].kind for n in (100, 101)] == [FrameKind.OK, FrameKind.OK]
        assert answers[102].failure.code == "limit"
        assert "subscriptions_max" in answers[102].failure.message


async def test_a_window_holds_the_broker_back_until_credit_comes() -> None:
    async with serving() as served:
        peer, publisher = await served.greeted(), await served.greeted()
        number = await publisher.open_topic("t")
        assert (await subscribe(peer, 3, window_bytes=1)).kind is FrameKind.OK
        for _ in range(3):
            await publisher.publish(one_message(number))
        assert (await peer.expect(FrameKind.FEED)).aux == 3
        first = await peer.expect(FrameKind.BATCH)
        assert await peer.frames_until_pong() == []
        await peer.send(credit_frame(3, len(first.payload) + 1))
        assert [f.kind for f in await peer.frames_until_pong()] == [FrameKind.BATCH] * 2


async def test_a_subscriber_of_a_pattern_is_told_of_topics_that_come_and_go() -> None:
    async with serving() as served:
        peer, other = await served.greeted(), await served.greeted()
        assert (await subscribe(peer, 3, "room.*", wildcard=True)).kind is FrameKind.OK
        number = await other.open_topic("room.1")
        joined = await peer.expect(FrameKind.JOINED)
        assert joined.aux == 3
        assert joined.read(messages.Joined).number == number
        await other.publish(one_message(number))
        assert (await peer.expect(FrameKind.FEED)).aux == 3
        assert (await peer.expect(FrameKind.BATCH)).payload
        await other.ask(FrameKind.DELETE_TOPIC, messages.NamedTopic("room.1"))
        left = await peer.expect(FrameKind.LEFT)
        assert left.read(messages.Left) == messages.Left(number, "room.1")


async def test_resuming_past_the_end_brings_a_reset_gap() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        await peer.publish(one_message(number))
        answer = await subscribe(peer, 3, resume=(messages.Position("t", 0, 50),))
        assert answer.kind is FrameKind.OK
        gap = (await peer.expect(FrameKind.GAP)).read(messages.GapNotice)
        assert (gap.first, gap.next, gap.reason) == (50, 0, "reset")
        assert (await peer.expect(FrameKind.FEED)).aux == 3
        assert (await peer.expect(FrameKind.BATCH)).payload


# Commits


@pytest.mark.parametrize(
    ("durable", "positions"),
    [("", (("t", 0, 0),)), ("me", ()), ("me", (("t", 1, 0),)), ("me", (("t", -1, 0),))],
)
async def test_a_commit_that_means_nothing_fails(
    durable: str, positions: tuple[tuple[str, int, int], ...]
) -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.open_topic("t")
        wanted = messages.CommitOffsets(durable, tuple(messages.Position(*p) for p in positions))
        await expect_error(peer, FrameKind.COMMIT, wanted, "invalid_argument")


async def test_a_commit_is_remembered_and_told() -> None:
    async with serving() as served:
        peer = await served.greeted()
        number = await peer.open_topic("t")
        position = messages.Position("t", 0, 0, served.node.core.epoch, number)
        await peer.ask(FrameKind.COMMIT, messages.CommitOffsets("me", (position,)))
        answer = await peer.ask(FrameKind.COMMITTED, messages.FindCommitted("me"))
        assert answer.read(messages.Positions).positions == (position,)
        answer = await peer.ask(FrameKind.COMMITTED, messages.FindCommitted("nobody"))
        assert answer.read(messages.Positions).positions == ()


# The rest


async def test_a_ping_is_answered_with_its_number_and_its_first_bytes() -> None:
    async with serving() as served:
        peer = await served.greeted()
        answer = await peer.ask(FrameKind.PING, messages.Goodbye("x" * 100), aux=4)
        assert (answer.kind, answer.aux, len(answer.payload)) == (FrameKind.PONG, 4, 64)


async def test_a_goodbye_ends_the_connection_without_an_error() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await peer.send(request(FrameKind.GOODBYE, messages.Goodbye("done")))
        assert await peer.rest() == []


async def test_the_status_counts_connections_and_subscriptions() -> None:
    async with serving() as served:
        peer = await served.greeted()
        await subscribe(peer, 3)
        status = (await peer.ask(FrameKind.STATUS)).read(messages.BrokerStatus)
        assert (status.state, status.connections, status.subscriptions) == ("ok", 1, 1)
