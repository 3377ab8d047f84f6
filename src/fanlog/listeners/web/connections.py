"""The long-lived connections of this process (WebSockets and event streams), by id and by user. The
server API lists and closes them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from fanlog.model import WebConnectionInfo

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit

# Bytes of a connection's subscriptions in a list, so that a page fits into a signal.
_SUBSCRIPTIONS_BYTES = 400


class WebPeer(Protocol):
    """A connection, as far as the server API needs it. `transport` is "websocket" or "sse"."""

    @property
    def id(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def transport(self) -> str: ...
    @property
    def since_us(self) -> int: ...
    @property
    def permit(self) -> Permit: ...

    def subscriptions(self) -> list[str]:
        """The subscribed topics and patterns."""
        ...

    def disconnect(self, reason: str, *, reconnect: bool) -> None:
        """Closes the connection. Without `reconnect` the client gets a request not to reconnect."""
        ...


class WebConnections:
    """In the order of their ids, so that paging works while connections come and go."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._ids: list[str] = []
        self._by_id: dict[str, WebPeer] = {}
        self._by_user: dict[str, dict[str, WebPeer]] = {}
        self._user_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def every(self) -> list[WebPeer]:
        return list(self._by_id.values())

    def add(self, peer: WebPeer) -> None:
        if peer.id not in self._by_id:
            insort(self._ids, peer.id)
            self._by_id[peer.id] = peer
            self._user_of[peer.id] = peer.user
            self._by_user.setdefault(peer.user, {})[peer.id] = peer

    def remove(self, peer: WebPeer) -> None:
        if self._by_id.pop(peer.id, None) is None:
            return
        del self._ids[bisect_right(self._ids, peer.id) - 1]
        # The peer may have logged in as another user since.
        user = self._user_of.pop(peer.id)
        mine = self._by_user[user]
        del mine[peer.id]
        if not mine:
            del self._by_user[user]

    def page(self, after: str, limit: int, user: str | None = None) -> list[WebConnectionInfo]:
        """Connections after an id, of one user if given."""
        if user is not None:
            mine = sorted(id for id in self._by_user.get(user, ()) if id > after)
            return [self._info(self._by_id[id]) for id in mine[:limit]]
        at = bisect_right(self._ids, after)
        return [self._info(self._by_id[id]) for id in self._ids[at : at + limit]]

    def disconnect(
        self, *, user: str | None = None, connection: str = "", reason: str, reconnect: bool
    ) -> int:
        """Closes the connections of a user, or one connection. Returns how many."""
        if connection:
            one = self._by_id.get(connection)
            peers = [] if one is None else [one]
        else:
            peers = list(self._by_user.get(user or "", {}).values())
        for peer in peers:
            peer.disconnect(reason, reconnect=reconnect)
        return len(peers)

    def _info(self, peer: WebPeer) -> WebConnectionInfo:
        return WebConnectionInfo(
            id=peer.id,
            user=peer.user,
            address=peer.address,
            transport=peer.transport,
            process=self._process,
            since_us=peer.since_us,
            subscriptions=fitting(peer.subscriptions(), _SUBSCRIPTIONS_BYTES),
        )


def fitting(names: Iterable[str], bytes_max: int) -> list[str]:
    """As many of the first names as fit."""
    found: list[str] = []
    for name in names:
        bytes_max -= len(name.encode(errors="replace"))
        if bytes_max < 0:
            break
        found.append(name)
    return found
