"""The events that a web subscription's reader gets beside messages, in order with its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.format.messages import Joined, Notice, Position
from fanlog.format.web_frames import text_frame
from fanlog.format.web_positions import print_position, print_positions
from fanlog.listeners.web.following import WantedSubscription, positions_of
from fanlog.listeners.web.operations import (
    GapFrame,
    JoinedFrame,
    LeftFrame,
    NoticeFrame,
    encode,
)
from fanlog.model import Gap, GapReason

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.listeners.web.connection import WebConnection


class JsonReader:
    """The reader of a subscription on a WebSocket."""

    __slots__ = ("_connection", "_core", "_filter", "_numbered", "_target", "_wanted")

    def __init__(
        self,
        core: BrokerCore,
        connection: WebConnection,
        wanted: WantedSubscription,
        *,
        numbered: bool,
    ) -> None:
        self._core = core
        self._connection = connection
        self._wanted = wanted
        self._target, self._filter = wanted.key
        # Binary frames name topics by their numbers.
        self._numbered = numbered

    def gap(self, gap: Gap, number: int) -> None:
        frame, _ = gap_frame(self._core.epoch, self._wanted, gap, number)
        self._tell(frame)

    def joined(self, joined: Joined) -> None:
        numbers = {str(joined.number): joined.name} if self._numbered else {}
        frame = JoinedFrame(
            target=self._target,
            filter=self._filter,
            topic=joined.name,
            positions=print_positions(positions_of([joined])),
            numbers=numbers,
        )
        self._tell(frame)

    def left(self, number: int, name: str) -> None:
        self._tell(LeftFrame(target=self._target, filter=self._filter, topic=name))

    def notice(self, notice: Notice) -> None:
        frame = NoticeFrame(
            target=self._target, filter=self._filter, kind=notice.kind, topic=notice.topic
        )
        self._tell(frame)

    def _tell(self, frame: GapFrame | JoinedFrame | LeftFrame | NoticeFrame) -> None:
        self._connection.tell(text_frame(encode(frame)))


def gap_frame(
    epoch: int, wanted: WantedSubscription, gap: Gap, number: int
) -> tuple[GapFrame, Position]:
    """What will not come, and where the reader is behind it."""
    target, filter_text = wanted.key
    begin = print_position(gap.first, epoch, number)
    end = Position(gap.topic, gap.partition, gap.next, epoch, number)
    if gap.reason is GapReason.RESET:
        # The reader was in another log: it gets its position as it knows it.
        for known in wanted.positions or ():
            if (known.topic, known.partition) == (gap.topic, gap.partition):
                begin = print_position(known.offset, known.epoch, known.number)
    frame = GapFrame(
        target=target,
        filter=filter_text,
        topic=gap.topic,
        partition=gap.partition,
        begin=begin,
        end=print_position(end.offset, epoch, number),
        reason=gap.reason.value,
    )
    return frame, end
