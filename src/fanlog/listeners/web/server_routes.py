"""The server API over REST: programs manage users and connections of all web listeners."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.broker.names import check_pattern, check_public_name
from fanlog.errors import (
    ForbiddenError,
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    MessageTooLargeError,
    allow_more,
)
from fanlog.format.patterns import is_pattern
from fanlog.format.presence import CONNECTION_BYTES_MAX
from fanlog.format.web import OutgoingMessage
from fanlog.identity import Verb
from fanlog.listeners.web.clients import forget_clients
from fanlog.listeners.web.openapi_names import PATTERN_PATTERN
from fanlog.listeners.web.ports import MessageToPublish, Published
from fanlog.listeners.web.presence import PresenceOf
from fanlog.listeners.web.publish_limits import charge_request
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.user_topics import user_topic

_REASON_BYTES_MAX = 120
# As a WebSocket client names its user.
_USER_LENGTH_MAX = 200
_NO_CONTROL = "^[^\\x00-\\x1f\\x7f-\\x9f]+$"
# Topics that a broadcast publishes to at a time.
_TOGETHER = 200


class ConnectionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A client that is connected."""

    id: str
    user: str
    address: str
    listener: Annotated[str, Meta(description="native, redis or web.")]
    transport: Annotated[str, Meta(description="native, redis, websocket, sse or http.")]
    process: Annotated[str, Meta(description="The process that the client is connected to.")]
    since: Annotated[str, Meta(description="When it connected, RFC 3339 in UTC.")]
    subscriptions: Annotated[list[str], Meta(description="The topics and patterns it follows.")]
    client: Annotated[str, Meta(description="What the client calls itself.")] = ""
    account: Annotated[
        str, Meta(description="How the user logged in: key, user, token or certificate.")
    ] = ""
    behind_messages: Annotated[int, Meta(description="Messages for it that are not sent yet.")] = 0
    behind_bytes: Annotated[
        int,
        Meta(
            description="The approximate size of those messages, plus the bytes that wait in "
            "its connection."
        ),
    ] = 0


class ConnectionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of connections. With `next` there are more: give it as `after`."""

    connections: list[ConnectionAnswer]
    total: Annotated[int, Meta(description="Connections of all processes.")]
    next: str = ""


class ConnectionsQuery(msgspec.Struct, frozen=True, kw_only=True):
    user: (
        Annotated[str, Meta(max_length=255, description="Only connections of this user.")] | None
    ) = None
    listener: Annotated[
        Literal["", "native", "redis", "web"],
        Meta(description="Only connections of this listener."),
    ] = ""
    address: Annotated[
        str, Meta(max_length=64, description="Only connections from this host, or host and port.")
    ] = ""
    requests: Annotated[
        bool, Meta(description="Include HTTP connections that only send requests.")
    ] = False
    after: Annotated[str, Meta(max_length=64, description="The `next` of the previous page.")] = ""
    limit: Annotated[
        int, Meta(ge=1, le=500, description="The largest number of connections on the page.")
    ] = 100


class DisconnectQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The reason, and whether the clients should reconnect."""

    reason: Annotated[
        str, Meta(max_length=_REASON_BYTES_MAX, description="The reason. The clients get it.")
    ] = ""
    reconnect: Annotated[bool, Meta(description="Whether the clients should connect again.")] = (
        False
    )


class DisconnectedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    disconnected: Annotated[int, Meta(description="The number of closed connections.")]


class BroadcastBody(OutgoingMessage, kw_only=True, forbid_unknown_fields=True):
    """A message for every topic that matches."""

    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            examples=["room.*"],
            extra_json_schema={"allOf": [{"pattern": PATTERN_PATTERN}, {"pattern": _NO_CONTROL}]},
        ),
    ]


class PublishedToAll(msgspec.Struct, frozen=True, kw_only=True):
    """Where the message is, in each topic."""

    published: list[Published]


async def connections(call: Call[ConnectionsQuery, None]) -> ConnectionsAnswer:
    query = call.query
    found, total = await call.listener.server_api.connections(
        query.after,
        query.limit,
        user=query.user,
        address=query.address,
        listener=query.listener,
        requests=query.requests,
    )
    answers = [
        ConnectionAnswer(
            id=one.id,
            user=one.user,
            address=one.address,
            listener=one.listener,
            transport=one.transport,
            process=one.process,
            since=one.since.isoformat().replace("+00:00", "Z"),
            subscriptions=one.subscriptions,
            client=one.client,
            account=one.account,
            behind_messages=one.behind_messages,
            behind_bytes=one.behind_bytes,
        )
        for one in found
    ]
    after = found[-1].id if len(found) == query.limit else ""
    return ConnectionsAnswer(connections=answers, total=total, next=after)


async def disconnect_connection(call: Call[DisconnectQuery, None]) -> DisconnectedAnswer:
    connection = call.path("connection")
    if len(connection) > CONNECTION_BYTES_MAX:
        raise InvalidArgumentError(f"A connection's id has at most {CONNECTION_BYTES_MAX} bytes.")
    count = await call.listener.server_api.disconnect(
        connection=connection,
        reason=_reason(call.query.reason),
        reconnect=call.query.reconnect,
    )
    forget_clients(call.listener)
    who, result = call.permit.who, "ok" if count else "failed"
    call.bus.core.audit.note(who, "connection.close", connection, result, call.query.reason)
    return DisconnectedAnswer(disconnected=count)


async def disconnect_user(call: Call[DisconnectQuery, None]) -> DisconnectedAnswer:
    count = await call.listener.server_api.disconnect(
        user=_user(call)[0],
        reason=_reason(call.query.reason),
        reconnect=call.query.reconnect,
    )
    forget_clients(call.listener)
    return DisconnectedAnswer(disconnected=count)


def _user(call: Call[Any, Any]) -> tuple[str, str]:
    """The user that the path names, and the user's topic."""
    user = call.path("user")
    if len(user) > _USER_LENGTH_MAX:
        raise InvalidArgumentError(f"A user's name has at most {_USER_LENGTH_MAX} characters.")
    return user, user_topic(call.listener.options.user_topic, user)


def _reason(reason: str) -> str:
    """A reason that fits into a WebSocket's close frame."""
    if len(reason.encode(errors="replace")) > _REASON_BYTES_MAX:
        raise InvalidArgumentError(f"The reason has more than {_REASON_BYTES_MAX} bytes.")
    return reason


def _message(given: OutgoingMessage) -> MessageToPublish:
    key, value, headers = given.record()
    return MessageToPublish(value, key, headers or {})


async def send_to_user(call: Call[Nothing, OutgoingMessage]) -> PublishedToAll:
    _, topic = _user(call)
    message = _message(call.body)
    charge_request(call.bus, call.permit, topic, [message])
    return PublishedToAll(published=await call.bus.publish(topic, [message]))


async def broadcast(call: Call[Nothing, BroadcastBody]) -> PublishedToAll:
    pattern, message = call.body.pattern, _message(call.body)
    names = await _matching(call, pattern)
    permit = call.permit
    for name in names:
        permit.ask(Verb.PUBLISH, name)
        charge_request(call.bus, permit, name, [message])
    published: list[Published] = []
    for at in range(0, len(names), _TOGETHER):
        some = names[at : at + _TOGETHER]
        stored = await asyncio.gather(*(call.bus.publish(name, [message]) for name in some))
        published += [one for several in stored for one in several]
    return PublishedToAll(published=published)


async def _matching(call: Call[Any, Any], pattern: str) -> list[str]:
    """The topics that a broadcast goes to. A bus without a list of topics has those that somebody
    follows."""
    if not is_pattern(pattern):
        return [check_public_name(pattern)]
    check_pattern(pattern)
    client = call.bus.client
    if client is None:
        names = await call.listener.server_api.topics(pattern)
    else:
        names = [topic.name for topic in await client.topics(pattern)]
    most = call.listener.options.broadcast_topics_max
    if len(names) > most:
        raise LimitError(
            f"{len(names)} topics match {pattern!r}, and a broadcast may reach {most}. Use a "
            "narrower pattern. " + allow_more("web.broadcast_topics_max")
        )
    return names


async def presence(call: Call[Nothing, None]) -> PresenceOf:
    return call.listener.presence.snapshot(check_public_name(call.path("topic")))


_PUBLISH_ERRORS = (
    ForbiddenError,
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    MessageTooLargeError,
)

ROUTES = [
    Route(
        "POST",
        "/v1/users/{user}/messages",
        send_to_user,
        "Send a message to a user",
        "connections",
        body=OutgoingMessage,
        answer=PublishedToAll,
        description="Publishes to the topic of the user (`web.user_topic`). All connections of "
        "the user that follow `$user` get the message, even if they were away.",
        errors=_PUBLISH_ERRORS,
        verb=Verb.USER,
        about="user",
    ),
    Route(
        "POST",
        "/v1/users/{user}/disconnect",
        disconnect_user,
        "Close all connections of a user",
        "connections",
        query=DisconnectQuery,
        answer=DisconnectedAnswer,
        description="On all processes. The user can connect again.",
        errors=(ForbiddenError, InvalidArgumentError, InvalidNameError),
        verb=Verb.USER,
        about="user",
        action="user.disconnect",
        detail=lambda call: call.query.reason,
    ),
    Route(
        "POST",
        "/v1/broadcast",
        broadcast,
        "Publish one message to every topic that matches a pattern",
        "connections",
        body=BroadcastBody,
        answer=PublishedToAll,
        errors=_PUBLISH_ERRORS,
    ),
    Route(
        "GET",
        "/v1/connections",
        connections,
        "List the connections of all listeners and processes",
        "connections",
        query=ConnectionsQuery,
        answer=ConnectionsAnswer,
        errors=(ForbiddenError,),
        verb=Verb.ADMIN,
    ),
    Route(
        "DELETE",
        "/v1/connections/{connection}",
        disconnect_connection,
        "Close one connection",
        "connections",
        query=DisconnectQuery,
        answer=DisconnectedAnswer,
        errors=(ForbiddenError, InvalidArgumentError),
        verb=Verb.ADMIN,
    ),
    Route(
        "GET",
        "/v1/presence/{topic}",
        presence,
        "Show who is present in a topic",
        "presence",
        answer=PresenceOf,
        errors=(ForbiddenError, InvalidNameError),
        verb=Verb.PRESENCE,
        about="topic",
    ),
]
