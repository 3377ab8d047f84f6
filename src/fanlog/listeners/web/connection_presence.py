"""One connection's presence: the topics in which it is present, and watches others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fanlog.errors import InvalidArgumentError
from fanlog.format.patterns import is_pattern
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.listeners.web.presence import Presence, PresenceEvent, PresenceOf


# Without info, or with it.
Wish = bool | dict[str, Any]


def read_wish(text: str) -> Wish:
    """The same as a parameter of a request: `true`, or the info as a JSON object."""
    if text in ("", "false"):
        return False
    try:
        return msgspec.json.decode(text, type=bool | dict[str, Any])
    except msgspec.DecodeError:
        raise InvalidArgumentError(
            f"`presence` is true, or the info as a JSON object, not {text[:80]!r}."
        ) from None


def _info(wanted: Wish) -> bytes:
    return msgspec.json.encode(wanted) if isinstance(wanted, dict) else b""


def _nobody(event: PresenceEvent) -> None:
    """Drops the event: the connection is gone."""


class ConnectionPresence:
    """`tell` gets each change in a topic that the connection is present in. Several subscriptions
    to a topic, with different filters, are one presence."""

    def __init__(
        self,
        presence: Presence,
        permit: Permit,
        connection: str,
        user: str,
        tell: Callable[[PresenceEvent], None],
    ) -> None:
        self._presence = presence
        self._permit = permit
        self._connection = connection
        self._user = user
        self._tell: Callable[[PresenceEvent], None] = tell
        # For each topic, how many subscriptions want presence.
        self._wanted: dict[str, int] = {}

    def check(self, target: str, wanted: Wish = True) -> None:
        """Checks that the connection may be present there, with this info."""
        if is_pattern(target):
            raise InvalidArgumentError(
                f"{target!r} is a pattern, and presence is of one topic: subscribe to that one."
            )
        self._permit.ask(Verb.PRESENCE, target)
        self._presence.check(target, self._connection, self._user, _info(wanted))

    def begin(self, topic: str, wanted: Wish) -> None:
        """A subscription wants presence, `True` or with info."""
        self.check(topic, wanted)
        self._presence.join(topic, self._connection, self._user, _info(wanted))
        self._wanted[topic] = self._wanted.get(topic, 0) + 1
        self._presence.watch(topic, self)

    def end(self, topic: str) -> None:
        """A subscription that wanted it has ended."""
        left = self._wanted.get(topic, 0) - 1
        if left > 0:
            self._wanted[topic] = left
        elif left == 0:
            del self._wanted[topic]
            self._presence.unwatch(topic, self)
            self._presence.leave(topic, self._connection)

    def of(self, topic: str) -> PresenceOf:
        """The users who are present in a topic, whether or not this connection is."""
        self.check(topic)
        return self._presence.snapshot(topic)

    def close(self) -> None:
        for topic in self._wanted:
            self._presence.unwatch(topic, self)
        self._wanted.clear()
        self._presence.gone(self._connection)
        # It refers to the owner of this object: neither may keep the other in memory.
        self._tell = _nobody

    # The presence's Watcher

    def presence_changed(self, event: PresenceEvent) -> None:
        self._tell(event)
