"""Topics with users who are present, for the dashboard. `GET /v1/presence/{topic}` lists the users
of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.broker.presence.rooms import RoomSize
from fanlog.errors import InvalidArgumentError
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.shared_answers import SharedAnswers
from fanlog.listeners.web.sorted_pages import page_of

if TYPE_CHECKING:
    from fanlog.listeners.web.listener_port import WebPort


class RoomsQuery(msgspec.Struct, frozen=True, kw_only=True):
    search: Annotated[
        str,
        Meta(
            max_length=255,
            description="Only topics with this text in their name, in upper or lower case.",
        ),
    ] = ""
    sort: Annotated[
        Literal["users", "connections", "topic"], Meta(description="The sort order.")
    ] = "users"
    descending: Annotated[bool, Meta(description="The largest value first.")] = True
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Rooms to skip.")] = 0
    limit: Annotated[
        int, Meta(ge=1, le=500, description="The largest number of rooms on the page.")
    ] = 50


class RoomAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with people in it."""

    topic: str
    users: int
    connections: int


class RoomsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the rooms that fit and that you may see, and the sums over all of those."""

    rooms: list[RoomAnswer]
    total: Annotated[int, Meta(description="Rooms that match.")]
    offset: int
    users: Annotated[int, Meta(description="Users in them. A user in two rooms counts twice.")]
    connections: Annotated[
        int, Meta(description="Connections in them. A connection in two rooms counts twice.")
    ]


_sizes: SharedAnswers[list[RoomSize]] = SharedAnswers()
_answers: SharedAnswers[RoomsAnswer] = SharedAnswers()


async def _look(listener: WebPort) -> list[RoomSize]:
    return [one async for one in listener.core.slices.each(listener.presence.sizes())]


def _key(one: RoomSize, sort: str, *, descending: bool) -> tuple[int | str, str]:
    """Of rooms of one size the names are in order, whichever comes first."""
    if sort == "topic":
        return one.topic, ""
    size = one.users if sort == "users" else one.connections
    return (-size if descending else size), one.topic


async def rooms(call: Call[RoomsQuery, None]) -> RoomsAnswer:
    permit = call.permit
    # Who may see the same shares an answer.
    viewer = permit.who if permit.guarded and permit.who.account is None else permit.who.account
    epoch = call.bus.core.permissions_epoch
    key = (call.query, epoch, viewer if permit.guarded else None)
    return await _answers.get(call.listener, lambda: _find(call), key)


async def _find(call: Call[RoomsQuery, None]) -> RoomsAnswer:
    query, listener, permit = call.query, call.listener, call.permit
    slices = listener.core.slices
    text = query.search.casefold()
    found: list[RoomSize] = []
    users = connections = 0
    async for one in slices.each(await _sizes.get(listener, lambda: _look(listener))):
        if text in one.topic.casefold() and permit.may(Verb.PRESENCE, one.topic):
            found.append(one)
            users += one.users
            connections += one.connections
    page = await page_of(
        slices,
        found,
        lambda one: _key(one, query.sort, descending=query.descending),
        offset=query.offset,
        limit=query.limit,
        descending=query.descending and query.sort == "topic",
    )
    return RoomsAnswer(
        rooms=[RoomAnswer(topic=o.topic, users=o.users, connections=o.connections) for o in page],
        total=len(found),
        offset=query.offset,
        users=users,
        connections=connections,
    )


ROUTES = [
    Route(
        "GET",
        "/v1/rooms",
        rooms,
        "List the topics with users who are present",
        "presence",
        query=RoomsQuery,
        answer=RoomsAnswer,
        description="Only topics whose presence you may see. The figures are at most some "
        "seconds old.",
        errors=(InvalidArgumentError,),
    ),
]
