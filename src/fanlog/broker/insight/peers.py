"""Open connections of all protocols, for operators. Listeners offer theirs as `Peer`. This module
makes rows of them, and finds those that are behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from fanlog.broker.messages.topics import Cursor
from fanlog.identity import Identity
from fanlog.model import ConnectionInfo

# Bytes of a connection's subscriptions in a list, so that a page fits into a signal.
_SUBSCRIPTIONS_BYTES = 400
# A client's name may be long.
_CLIENT_LENGTH_MAX = 100
# The most cursors checked for one connection. With more, the true lag may be larger.
_CURSORS_MAX = 1000


class Peer(Protocol):
    """One open connection. `transport` is `native`, `redis`, `http`, `websocket` or `sse`."""

    @property
    def id(self) -> str: ...
    @property
    def transport(self) -> str: ...
    @property
    def who(self) -> Identity: ...
    @property
    def client(self) -> str: ...
    @property
    def since_us(self) -> int: ...
    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the peer to read them."""
        ...

    def traffic(self) -> tuple[int, int] | None:
        """Bytes received from the peer, and sent to it, since it connected; None if unknown."""
        ...

    def targets(self) -> Iterable[str]:
        """The subscribed topics and patterns."""
        ...

    def behind(self) -> Iterator[Cursor]:
        """Its cursors before the end."""
        ...

    def close(self, reason: str, *, reconnect: bool) -> None:
        """Closes the connection, and tells the peer why."""
        ...


class PeerSource(Protocol):
    """What lists of connections need of a listener."""

    def peers(self) -> Iterator[Peer]: ...


def is_match(peer: Peer, *, user: str | None = None, address: str = "", listener: str = "") -> bool:
    """Whether a connection matches a user, an address (a host, or a host with its port), and a
    listener."""
    who = peer.who
    if user is not None and who.user != user:
        return False
    if listener and who.listener != listener:
        return False
    return not address or who.address == address or who.address.rpartition(":")[0] == address


def describe_peer(peer: Peer, process: str = "") -> ConnectionInfo:
    """A connection as lists show it."""
    who = peer.who
    messages, size = how_far_behind(peer)
    return ConnectionInfo(
        id=peer.id,
        user=_text(who.user),
        address=who.address,
        transport=peer.transport,
        process=process,
        since_us=peer.since_us,
        subscriptions=fitting(peer.targets(), _SUBSCRIPTIONS_BYTES),
        listener=who.listener,
        client=_text(peer.client)[:_CLIENT_LENGTH_MAX],
        account="" if who.account is None else who.account.kind,
        behind_messages=messages,
        behind_bytes=size,
    )


def how_far_behind(peer: Peer) -> tuple[int, int]:
    """Messages not sent to the peer yet, and their approximate bytes, with those that wait in the
    connection."""
    messages, size = 0, peer.waiting_bytes
    for cursor in islice(peer.behind(), _CURSORS_MAX):
        partition = cursor.partition
        log = partition.log
        start = log.start_offset
        more = max(0, partition.visible_end - max(cursor.offset, start))
        messages += more
        kept = partition.visible_end - start
        size += log.bytes * more // kept if kept else 0
    return messages, size


def fitting(names: Iterable[str], bytes_max: int) -> list[str]:
    """As many of the names as fit."""
    found: list[str] = []
    for name in names:
        bytes_max -= len(name.encode(errors="replace"))
        if bytes_max < 0:
            break
        found.append(_text(name))
    return found


def _text(name: str) -> str:
    """A name in valid UTF-8."""
    return name.encode(errors="replace").decode()
