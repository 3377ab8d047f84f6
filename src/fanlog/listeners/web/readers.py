"""What a web subscription's reader is told beside messages, in the order of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.format.messages import Joined, Notice
from fanlog.format.web_frames import text_frame
from fanlog.format.web_positions import print_position, print_positions
from fanlog.listeners.web.following import Wanted, positions_of
from fanlog.listeners.web.operations import (
    GapFrame,
    JoinedFrame,
    LeftFrame,
    NoticeFrame,
    encode,
)
from fanlog.model import Gap, GapReason

if TYPE_CHECKING:
    from fanlog.broker.core import Broker
    from fanlog.listeners.web.connection import WebConnection


class JsonReader:
    """The reader of a subscription on a WebSocket."""

    __slots__ = ("_connection", "_core", "_filter", "_known", "_numbered", "_target")

    def __init__(
        self, core: Broker, connection: WebConnection, wanted: Wanted, *, numbered: bool
    ) -> None:
        self._core = core
        self._connection = connection
        self._target, self._filter = wanted.key
        # Binary frames name topics by their numbers.
        self._numbered = numbered
        self._known = {(p.topic, p.partition): p for p in wanted.positions or ()}

    def gap(self, gap: Gap, number: int) -> None:
        begin, end = gap_ends(self._core, gap, number)
        known = self._known.pop((gap.topic, gap.partition), None)
        if known is not None and gap.reason is GapReason.RESET:
            # It was of another log: its position stands as the client knows it.
            begin = print_position(known.offset, known.epoch, known.number)
        frame = GapFrame(
            target=self._target,
            filter=self._filter,
            topic=gap.topic,
            partition=gap.partition,
            begin=begin,
            end=end,
            reason=gap.reason.value,
        )
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


def gap_ends(core: Broker, gap: Gap, number: int) -> tuple[str, str]:
    """The positions around what will not come."""
    epoch = core.epoch
    return print_position(gap.first, epoch, number), print_position(gap.next, epoch, number)
