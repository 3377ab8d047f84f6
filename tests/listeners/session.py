"""The bytes of a valid session that uses most of the protocol, for tests that cut and bend it."""

from __future__ import annotations

from fanlog.client.core.handshake import hello
from fanlog.format import messages
from fanlog.format.batch import encode_batch
from fanlog.format.codecs import Codec
from fanlog.format.frames import FrameKind, credit_frame, frame
from fanlog.model import SlowPolicy, Start
from tests.listeners.peers import Frame, acks_of, request

SUBSCRIPTION = 3


def session_frames(number: int, producer_id: int = 0) -> list[bytes]:
    """Every frame of the session, for a topic "bent" that has this number."""
    subscribe = messages.Subscribe(
        target="bent", start=Start("latest"), policy=SlowPolicy.CATCH_UP, window_bytes=1 << 16
    )
    position = messages.Position("bent", 0, 0)
    return [
        hello("bent"),
        request(FrameKind.OPEN_TOPIC, messages.OpenTopic("bent"), 1),
        request(FrameKind.CREATE_TOPIC, messages.CreateTopic("bent", {"partitions": 1}, True), 2),
        request(FrameKind.SUBSCRIBE, subscribe, 3, SUBSCRIPTION),
        encode_batch([b"a", b"b"], topic=number, producer_id=producer_id),
        encode_batch(
            [b"c", None],
            keys=[None, b"k"],
            headers=[{"h": b"1"}, None],
            event_times_us=[1, 2],
            codec=Codec.ZLIB,
            topic=number,
            producer_id=producer_id,
            first_sequence=2,
        ),
        credit_frame(SUBSCRIPTION, 1 << 20),
        request(FrameKind.FETCH, messages.Fetch(number, 0, 0), 4),
        request(FrameKind.COMMIT, messages.CommitOffsets("me", (position,)), 5),
        request(FrameKind.FIND_OFFSETS, messages.FindOffsets("bent", Start("time", 1)), 6),
        request(FrameKind.DESCRIBE_TOPIC, messages.NamedTopic("bent"), 7),
        frame(FrameKind.PING, b"ping", request=8),
    ]


def answered(frames: list[Frame]) -> bool:
    """Whether a session has got all that it must get."""
    requests = {got.request for got in frames if got.request}
    acks = sum(len(acks_of(got)) for got in frames if got.kind is FrameKind.ACK)
    batches = sum(got.kind is FrameKind.BATCH for got in frames)
    return requests == set(range(1, 9)) and acks == 2 and batches == 2
