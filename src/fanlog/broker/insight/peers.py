"""Open connections as operators see them, whatever they speak. Listeners show theirs as `Peer`;
this turns them into what is listed, and finds those that are behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from fanlog.broker.messages.topics import Cursor
from fanlog.identity import Identity
from fanlog.model import ConnectionInfo

# As much of a connection's subscriptions as a list shows, so that a page fits into a signal.
_SUBSCRIPTIONS_BYTES = 400
# What a client calls itself may be long.
_CLIENT_LENGTH_MAX = 100
# Cursors of one connection that are looked at: with more, what it is behind is at least so much.
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
        """Bytes that the connection holds until the peer takes them."""
        ...

    def traffic(self) -> tuple[int, int] | None:
        """Bytes received from the peer, and sent to it, since it connected; None if unknown."""
        ...

    def targets(self) -> Iterable[str]:
        """The topics and patterns that it follows."""
        ...

    def behind(self) -> Iterator[Cursor]:
        """Its cursors that are not at the end."""
        ...

    def close(self, reason: str, *, reconnect: bool) -> None:
        """Closes the connection, and tells the peer why."""
        ...


class PeerSource(Protocol):
    """A listener, as far as its connections are asked for."""

    def peers(self) -> Iterator[Peer]: ...


def is_match(peer: Peer, *, user: str | None = None, address: str = "", listener: str = "") -> bool:
    """Whether a connection is a user's, comes from an address (a host, or a host with its port),
    and came to a listener."""
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
    """Messages that the peer has not been sent, and about how many bytes that is, with those that
    wait in the connection."""
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
    """A name as UTF-8 can have it."""
    return name.encode(errors="replace").decode()
