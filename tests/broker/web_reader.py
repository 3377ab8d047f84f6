"""A reader of views over records, as a web connection is one: it takes whole pieces, and says
afterwards that it takes no more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.broker.ports import SendBuffer
from fanlog.format.messages import Subscribe
from fanlog.format.web_filters import Filter
from fanlog.format.web_positions import parse_positions, print_position
from fanlog.format.web_views import ViewKind, views_for
from fanlog.model import Gap, Start
from tests.broker.stage import Peer, Stage
from tests.format.web_frames import documents


class WebPeer(Peer):
    """`positions` is what a browser keeps of all that it was sent. With `room` its socket is full
    behind the piece that passes it."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[SendBuffer] = []
        self.subscription: BrokerSubscription | None = None
        self.positions: dict[str, str] = {}
        self.seen: list[tuple[str, int, int, str]] = []
        self.told: list[dict[str, Any]] = []

    def send(self, piece: SendBuffer) -> int:
        assert piece
        assert not self.blocked
        self._take(piece)
        return len(piece)

    def push(self, subscription: BrokerSubscription, pieces: list[memoryview]) -> None:
        for piece in pieces:
            assert piece
            self._take(piece)

    def _take(self, piece: SendBuffer) -> None:
        self.pieces.append(piece)
        if self.room is not None:
            self.room -= len(piece)
            self.blocked = self.room <= 0
        for frame in documents(bytes(piece)):
            self._read(frame)

    def _read(self, frame: dict[str, Any]) -> None:
        topic, partition = frame["topic"], frame["partition"]
        if frame["type"] != "messages":
            self.told.append(frame)
        for message in frame.get("messages", ()):
            seen = (topic, partition, message["offset"], message.get("text", ""))
            self.seen.append(seen)
        self.positions[f"{topic}/{partition}"] = frame.get("position") or frame["to"]

    @property
    def values(self) -> list[str]:
        return [text for _, _, _, text in self.seen]

    def gap(self, gap: Gap, number: int) -> None:
        super().gap(gap, number)
        place = f"{gap.topic}/{gap.partition}"
        epoch = self.positions.get(place, "0.0.0").split(".")[1]
        self.positions[place] = print_position(gap.next, int(epoch), number)

    def resume(self, on: Stage, room: int | None = None) -> None:
        self.room = room
        self.blocked = False
        on.core.resume(self)


async def follow(
    on: Stage,
    target: str,
    *,
    peer: WebPeer | None = None,
    kind: ViewKind = "json",
    filter: Filter | None = None,
    positions: Mapping[str, str] | None = None,
    **wanted: Any,
) -> WebPeer:
    """A reader; live unless told otherwise. With `positions` it comes back."""
    out = peer or WebPeer()
    resume = None if positions is None else parse_positions(positions)
    wanted = {"start": Start("latest")} | wanted
    asked = Subscribe(
        target=target, wildcard="*" in target or ">" in target, resume=resume, **wanted
    )
    adding = asyncio.ensure_future(
        on.core.subscriptions.add(1, asked, out, out, views=views_for(kind, target, filter))
    )
    while not adding.done():
        await asyncio.sleep(0)
        on.runtime.run()
    out.subscription, joined = await adding
    for topic in joined:
        for start in topic.starts:
            place = f"{topic.name}/{start.partition}"
            out.positions[place] = print_position(start.offset, topic.epoch, topic.number)
    out.joins += joined
    on.core.subscriptions.start(out.subscription)
    return out
