"""The clients of this process, for people: search, sort, and pages by number. `GET /v1/connections`
lists the clients of all processes, for programs.

Law: the scan of ten thousand connections runs in slices, and concurrent requests share it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta

from fanlog.broker.insight.peers import describe_peer
from fanlog.errors import ForbiddenError, InvalidArgumentError, NotSupportedError
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.shared_answers import SharedAnswers
from fanlog.listeners.web.sorted_pages import page_of

if TYPE_CHECKING:
    from fanlog.broker.insight.peers import Peer
    from fanlog.listeners.web.listener_port import WebPort
    from fanlog.model import ConnectionInfo

# Counts that are older say nothing about what a connection does now.
_COUNTS_SECONDS_MAX = 60.0
_COUNTS_SECONDS_MIN = 0.5
# Users and hosts that are named with how many connections they have.
_COUNTED_MAX = 20

ClientSort = Literal[
    "behind_bytes",
    "behind_messages",
    "received_rate",
    "sent_rate",
    "received_bytes",
    "sent_bytes",
    "since",
    "user",
    "address",
    "client",
    "subscriptions",
]
_TEXTS = ("user", "address", "client")


class ClientAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A connected client."""

    id: str
    user: str
    address: str
    listener: Annotated[str, Meta(description="native, redis or web.")]
    transport: Annotated[str, Meta(description="native, redis, websocket, sse or http.")]
    since: Annotated[str, Meta(description="When it connected, RFC 3339 in UTC.")]
    subscriptions: Annotated[
        list[str],
        Meta(
            description="The topics and patterns it follows. Only some of them if there are "
            "very many."
        ),
    ]
    client: Annotated[str, Meta(description="What the client calls itself.")]
    account: Annotated[
        str, Meta(description="How the user logged in: key, user, token or certificate.")
    ]
    account_name: Annotated[str, Meta(description="The name of that key or user.")]
    behind_messages: Annotated[int, Meta(description="Messages for it that are not sent yet.")]
    behind_bytes: Annotated[
        int,
        Meta(
            description="The approximate size of those messages, plus the bytes that wait in "
            "its connection."
        ),
    ]
    received_bytes: Annotated[
        int | None,
        Meta(description="Bytes that the client has sent; null if they are not counted."),
    ]
    sent_bytes: Annotated[int | None, Meta(description="Bytes that were sent to the client.")]
    received_rate: Annotated[
        float | None,
        Meta(
            description="Bytes per second from the client: since the last request for this "
            "list, up to a minute ago, or since it connected."
        ),
    ]
    sent_rate: Annotated[float | None, Meta(description="Bytes per second to the client.")]


class UserCount(msgspec.Struct, frozen=True):
    user: str
    connections: int


class HostCount(msgspec.Struct, frozen=True):
    host: str
    connections: int


class ClientsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the clients that match, and totals."""

    clients: list[ClientAnswer]
    total: Annotated[int, Meta(description="Clients that match.")]
    offset: int
    connections: Annotated[int, Meta(description="All clients that are connected.")]
    listeners: Annotated[dict[str, int], Meta(description="The number of clients, by listener.")]
    users: Annotated[list[UserCount], Meta(description="The users with most connections.")]
    hosts: Annotated[list[HostCount], Meta(description="The addresses with most connections.")]
    behind_bytes: Annotated[int, Meta(description="The bytes that all of them are behind.")]
    processes: Annotated[
        int,
        Meta(description="Other processes, such as edges, whose clients are not in this list."),
    ]


class ClientsQuery(msgspec.Struct, frozen=True, kw_only=True):
    search: Annotated[
        str,
        Meta(
            max_length=200,
            description="Only clients with this text in the user, client, address, id or a "
            "subscription, in upper or lower case.",
        ),
    ] = ""
    listener: Annotated[
        Literal["", "native", "redis", "web"], Meta(description="Only clients of this listener.")
    ] = ""
    user: Annotated[str, Meta(max_length=255, description="Only clients of this user.")] | None = (
        None
    )
    address: Annotated[
        str, Meta(max_length=64, description="Only clients from this host, or host and port.")
    ] = ""
    behind: Annotated[bool, Meta(description="Only clients that are behind.")] = False
    requests: Annotated[
        bool, Meta(description="Include HTTP connections that only send requests.")
    ] = False
    sort: Annotated[ClientSort, Meta(description="The sort order.")] = "behind_bytes"
    descending: Annotated[bool, Meta(description="The largest value first.")] = True
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Clients to skip.")] = 0
    limit: Annotated[
        int, Meta(ge=1, le=500, description="The largest number of clients on the page.")
    ] = 50


class _ClientRow(msgspec.Struct, frozen=True):
    """A connection, as the scan saw it. Searches look into `text`."""

    info: ConnectionInfo
    account_name: str
    text: str
    received: int | None
    sent: int | None
    received_rate: float | None
    sent_rate: float | None


class _Scan(msgspec.Struct, frozen=True):
    found: list[_ClientRow]
    listeners: dict[str, int]
    users: list[UserCount]
    hosts: list[HostCount]
    behind_bytes: int


class _Counts:
    """The kernel's counters at the last scan, by connection."""

    def __init__(self) -> None:
        self.at = float("-inf")
        self.by_id: dict[str, tuple[int, int]] = {}


_scans: SharedAnswers[_Scan] = SharedAnswers()
_counts: WeakKeyDictionary[WebPort, _Counts] = WeakKeyDictionary()


def forget_clients(listener: WebPort) -> None:
    """Somebody has closed connections, and wants to see the list without them."""
    _scans.forget(listener)


async def _scan(listener: WebPort) -> _Scan:
    """Looks at everybody."""
    core, now = listener.core, asyncio.get_running_loop().time()
    before = _counts.setdefault(listener, _Counts())
    elapsed = now - before.at
    fresh = _COUNTS_SECONDS_MIN <= elapsed <= _COUNTS_SECONDS_MAX
    known = before.by_id if fresh else {}
    counts: dict[str, tuple[int, int]] = {}
    found: list[_ClientRow] = []
    listeners: Counter[str] = Counter()
    users: Counter[str] = Counter()
    hosts: Counter[str] = Counter()
    behind, now_us = 0, core.now_us()
    for source in listener.all_listeners():
        async for peer in core.slices.each(source.peers()):
            one = _look(peer, counts, known, elapsed, now_us)
            found.append(one)
            if one.info.transport != "http":
                listeners[one.info.listener] += 1
                users[one.info.user] += 1
                hosts[one.info.address.rpartition(":")[0]] += 1
                behind += one.info.behind_bytes
    if elapsed >= _COUNTS_SECONDS_MIN:
        before.at, before.by_id = now, counts
    return _Scan(
        found,
        dict(listeners),
        [UserCount(*one) for one in users.most_common(_COUNTED_MAX)],
        [HostCount(*one) for one in hosts.most_common(_COUNTED_MAX)],
        behind,
    )


def _look(
    peer: Peer,
    counts: dict[str, tuple[int, int]],
    known: dict[str, tuple[int, int]],
    elapsed: float,
    now_us: int,
) -> _ClientRow:
    info, traffic, account = describe_peer(peer), peer.traffic(), peer.who.account
    rates: tuple[float | None, float | None] = (None, None)
    if traffic is not None:
        counts[info.id] = traffic
        earlier = known.get(info.id)
        seconds = elapsed
        # An id may be that of another connection by now.
        if earlier is None or earlier[0] > traffic[0] or earlier[1] > traffic[1]:
            earlier, seconds = (0, 0), max(1.0, (now_us - info.since_us) / 1e6)
        rates = ((traffic[0] - earlier[0]) / seconds, (traffic[1] - earlier[1]) / seconds)
    received, sent = (None, None) if traffic is None else traffic
    text = "\n".join((info.user, info.client, info.address, info.id, *info.subscriptions))
    name = "" if account is None else account.name
    return _ClientRow(info, name, text.casefold(), received, sent, rates[0], rates[1])


def _fits(one: _ClientRow, query: ClientsQuery, text: str) -> bool:
    info = one.info
    if info.transport == "http" and not query.requests:
        return False
    if query.listener and info.listener != query.listener:
        return False
    if query.user is not None and info.user != query.user:
        return False
    if query.address and query.address not in (info.address, info.address.rpartition(":")[0]):
        return False
    if query.behind and not info.behind_bytes and not info.behind_messages:
        return False
    return text in one.text


def _key(one: _ClientRow, sort: ClientSort) -> tuple[str | float, str]:
    """What a client is sorted by. No two of them have the same."""
    if sort in _TEXTS:
        return str(getattr(one.info, sort)).casefold(), one.info.id
    return _figure(one, sort), one.info.id


def _figure(one: _ClientRow, sort: ClientSort) -> float:
    match sort:
        case "received_bytes":
            return one.received or 0
        case "sent_bytes":
            return one.sent or 0
        case "received_rate":
            return one.received_rate or 0.0
        case "sent_rate":
            return one.sent_rate or 0.0
        case "since":
            return one.info.since_us
        case "subscriptions":
            return len(one.info.subscriptions)
        case _:
            return getattr(one.info, sort)


def _answer(one: _ClientRow) -> ClientAnswer:
    info = one.info
    return ClientAnswer(
        id=info.id,
        user=info.user,
        address=info.address,
        listener=info.listener,
        transport=info.transport,
        since=info.since.isoformat().replace("+00:00", "Z"),
        subscriptions=info.subscriptions,
        client=info.client,
        account=info.account,
        account_name=one.account_name,
        behind_messages=info.behind_messages,
        behind_bytes=info.behind_bytes,
        received_bytes=one.received,
        sent_bytes=one.sent,
        received_rate=one.received_rate,
        sent_rate=one.sent_rate,
    )


async def clients(call: Call[ClientsQuery, None]) -> ClientsAnswer:
    query, listener = call.query, call.listener
    scan = await _scans.get(listener, lambda: _scan(listener))
    text, slices = query.search.casefold(), call.broker.slices
    fitting = [one async for one in slices.each(scan.found) if _fits(one, query, text)]
    page = await page_of(
        slices,
        fitting,
        lambda one: _key(one, query.sort),
        offset=query.offset,
        limit=query.limit,
        descending=query.descending,
    )
    return ClientsAnswer(
        clients=[_answer(one) for one in page],
        total=len(fitting),
        offset=query.offset,
        connections=sum(scan.listeners.values()),
        listeners=scan.listeners,
        users=scan.users,
        hosts=scan.hosts,
        behind_bytes=scan.behind_bytes,
        processes=listener.presence.roster.processes - 1,
    )


ROUTES = [
    Route(
        "GET",
        "/v1/connection-list",
        clients,
        "Search and sort the connections of this process",
        "connections",
        query=ClientsQuery,
        answer=ClientsAnswer,
        description="Find a client: which one is furthest behind, or sends most. The figures "
        "are at most some seconds old. `GET /v1/connections` lists the connections "
        "of all processes.",
        errors=(ForbiddenError, InvalidArgumentError, NotSupportedError),
        verb=Verb.ADMIN,
    ),
]
