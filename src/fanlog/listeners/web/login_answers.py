"""The requests and answers for logins, sessions and tickets over HTTP. Those with a secret hide it
in their `repr`, so that no log has it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.identity import Rules, Verb

_SECRET_LENGTH_MAX = 16_384
_NAME_LENGTH_MAX = 255
_Secret = Annotated[str, Meta(max_length=_SECRET_LENGTH_MAX)]
_LoginTime = Annotated[str, Meta(description="RFC 3339 in UTC.")]


class LoginBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user with a password; or a key; or a token."""

    user: Annotated[str, Meta(max_length=_NAME_LENGTH_MAX)] = ""
    password: _Secret = ""
    key: _Secret = ""
    token: _Secret = ""

    def __repr__(self) -> str:
        return "LoginBody(...)"


class LoginWays(msgspec.Struct, frozen=True, kw_only=True):
    """How to log in, for a login page."""

    auth: Annotated[bool, Meta(description="Whether clients must log in.")]
    ways: Annotated[
        list[Literal["password", "key", "token", "oidc"]], Meta(description="Ways to log in.")
    ]
    oidc: Annotated[
        str, Meta(description="The page where a browser logs in by OpenID Connect.")
    ] = ""


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """The current user and their permissions."""

    auth: Annotated[bool, Meta(description="Whether clients must log in.")]
    user: str
    kind: Annotated[str, Meta(description="key, user, token, certificate, or anonymous.")]
    account: Annotated[str, Meta(description="The name of the key or user of this login.")]
    role: Annotated[str, Meta(description="The role; empty if the account has only rules.")]
    rules: Rules
    reads_messages: Annotated[bool, Meta(description="Whether you may read any topic.")]
    admin: bool
    session: Annotated[
        str, Meta(description="The id of the browser session, if it is a session.")
    ] = ""
    expires: Annotated[str, Meta(description="When the login expires, or null.")] = ""


class MayQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of a question."""

    verb: Verb
    name: Annotated[
        str, Meta(max_length=_NAME_LENGTH_MAX, description="A topic, a pattern, a group, ...")
    ] = ""
    account: Annotated[
        str,
        Meta(
            max_length=_NAME_LENGTH_MAX,
            description="Another key or user. Only admins may ask about others.",
        ),
    ] = ""


class MayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    allowed: bool
    account: str
    reason: Annotated[str, Meta(description="Why not.")] = ""


class SessionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A browser that is logged in."""

    id: str
    user: str
    kind: str
    address: Annotated[str, Meta(description="The address that it logged in from.")]
    agent: Annotated[str, Meta(description="What the browser calls itself.")]
    begun: _LoginTime
    seen: _LoginTime
    expires: _LoginTime
    current: Annotated[bool, Meta(description="Whether this request uses it.")]


class SessionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, the newest first."""

    sessions: list[SessionAnswer]
    total: Annotated[int, Meta(description="Sessions that match.")]


class SessionsQuery(msgspec.Struct, frozen=True, kw_only=True):
    search: Annotated[
        str,
        Meta(
            max_length=200,
            description="Only sessions with this text in the user, address or browser.",
        ),
    ] = ""
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Sessions to skip.")] = 0
    limit: (
        Annotated[
            int,
            Meta(
                ge=1, le=500, description="The largest number of sessions on a page. Default: all."
            ),
        ]
        | None
    ) = None
    user: (
        Annotated[str, Meta(max_length=_NAME_LENGTH_MAX, description="Only sessions of this user.")]
        | None
    ) = None


class TicketBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    use: Annotated[
        Literal["events", "websocket"],
        Meta(description="events: one stream of server-sent events. websocket: one WebSocket."),
    ] = "events"


class TicketAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Put it into the address: `?ticket=...`. It is valid once."""

    ticket: str
    use: str
    seconds: Annotated[float, Meta(description="Seconds until the ticket expires.")]
