"""Channels, patterns and their followers. A channel is a topic as Redis clients see it; it is kept
here while it has followers or its topic exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.format.globs import Glob
from fanlog.format.resp_replies import PushView
from fanlog.model import HIDDEN_PREFIXES

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.messages.topics import BrokerTopic, Outlet

_HIDDEN = [prefix.encode() for prefix in HIDDEN_PREFIXES]


class ChannelFollower(Protocol):
    """A connection, as far as channels need it."""

    number: int
    name: bytes
    resp3: bool

    @property
    def outlet(self) -> Outlet: ...
    @property
    def permit(self) -> Permit: ...


class Channel:
    """`followers` subscribed to this channel; `matched` counts followers with a matching
    pattern."""

    __slots__ = (
        "_views",
        "followers",
        "matched",
        "name",
        "shard",
        "topic",
        "topic_name",
    )

    def __init__(self, name: bytes, topic_name: str, *, shard: bool) -> None:
        self.name = name
        self.topic_name = topic_name
        self.shard = shard
        self.topic: BrokerTopic | None = None
        self.followers: dict[ChannelFollower, BrokerSubscription] = {}
        self.matched = 0
        self._views: dict[tuple[bool, bytes | None], PushView] = {}

    def view(self, resp3: bool, pattern: bytes | None = None) -> PushView:
        """The one view that all followers in this form share."""
        key = (resp3, pattern)
        view = self._views.get(key)
        if view is None:
            kind = b"smessage" if self.shard else b"message" if pattern is None else b"pmessage"
            view = self._views[key] = PushView(kind, self.name, resp3=resp3, pattern=pattern)
        return view

    def forget_views(self) -> None:
        """Otherwise the views of patterns without readers would pile up."""
        self._views.clear()


class Pattern:
    """A glob and its followers, each with one subscription over all channels that fit."""

    __slots__ = ("followers", "glob")

    def __init__(self, text: bytes) -> None:
        self.glob = Glob(text)
        self.followers: dict[ChannelFollower, BrokerSubscription] = {}

    def fits(self, name: bytes) -> bool:
        """Whether it finds this channel. Inboxes for replies, and resumable streams, are found only
        by what begins like their names."""
        for prefix in _HIDDEN:
            if name.startswith(prefix) and not self.glob.text.startswith(prefix):
                return False
        return self.glob.matches(name)
