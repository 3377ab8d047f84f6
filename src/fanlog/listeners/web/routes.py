"""A route: one path and method, the types of requests and answers, and the handler. The same types
check the requests and make the OpenAPI document."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec
from aiohttp import web
from msgspec import inspect

from fanlog.errors import (
    FanlogError,
    ForbiddenError,
    InvalidArgumentError,
    NotSupportedError,
    RequestTimeoutError,
)
from fanlog.identity import Verb
from fanlog.listeners.login_requests import HELLO_BYTES_MAX
from fanlog.listeners.web.request_errors import explained

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.client.aio import Client
    from fanlog.listeners.web.entrance import Guest
    from fanlog.listeners.web.listener_port import WebPort
    from fanlog.listeners.web.ports import Bus

_NUMBER = re.compile(r"[-+.0-9eE_]+")

Q = TypeVar("Q")
B = TypeVar("B")


class Nothing(msgspec.Struct, frozen=True):
    """No parameters, or no body."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """One request, checked: `query` and `body` are of the types that the route names."""

    request: web.Request
    listener: WebPort
    query: Q
    body: B

    @property
    def bus(self) -> Bus:
        return self.listener.bus

    @property
    def client(self) -> Client:
        """The whole API, where the bus is Fanlog."""
        client = self.bus.client
        if client is None:
            raise NotSupportedError(
                f"This edge stands in front of {self.bus.name}, which does not support this. "
                "Publishing, subscriptions and presence work here. For the rest, ask a Fanlog "
                "broker."
            )
        return client

    @property
    def broker(self) -> BrokerCore:
        """The broker itself, where this process has it."""
        if not self.bus.is_broker:
            raise NotSupportedError("This is an edge, which can't tell. Ask the broker behind it.")
        return self.bus.core

    @property
    def guest(self) -> Guest:
        """The caller."""
        return self.listener.entrance.guest_of(self.request)

    @property
    def permit(self) -> Permit:
        """What the caller may do."""
        return self.guest.permit

    def path(self, name: str) -> str:
        """A part of the path."""
        return self.request.match_info[name]


RouteAnswer = msgspec.Struct | web.StreamResponse | None
RouteHandler = Callable[[Call[Any, Any]], Awaitable[RouteAnswer]]


@dataclass(frozen=True, slots=True)
class Param:
    """A header, as the OpenAPI document describes it; `schema` beside that it is a string."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Route:
    """`body` is a msgspec type for JSON, `bytes` for a body as it is, or None for none. `verb` is
    what a user needs, about the part of the path that `about` names, or about the broker. It is
    None where the handler asks by itself, because the names are in the body, or a list. A route
    that changes something has an `action`, under which the audit log has it; `detail` says more.

    The rest is for the OpenAPI document: `bodies` are the types of a body of bytes by content type
    (several: one of them), `types` further ones, `texts` further content types of the answer,
    `also` further statuses of an answer without a body, `unavailable` what is answered with status
    503, and the examples show JSON."""

    method: str
    path: str
    handler: RouteHandler
    summary: str
    tag: str
    query: type[msgspec.Struct] = Nothing
    body: Any = None
    answer: Any = None
    status: int = 200
    description: str = ""
    errors: tuple[type[FanlogError], ...] = field(default=())
    verb: Verb | None = None
    about: str = ""
    action: str = ""
    detail: Callable[[Call[Any, Any]], str] | None = None
    headers: tuple[Param, ...] = ()
    bodies: Mapping[str, Any] = field(default_factory=dict[str, Any])
    example: Any = None
    query_example: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer_type: str = "application/json"
    texts: tuple[str, ...] = ()
    answer_headers: tuple[Param, ...] = ()
    answer_example: Any = None
    also: tuple[int, ...] = ()
    types: tuple[Any, ...] = ()
    unavailable: Any = None


async def read_body(
    request: web.Request, timeout_seconds: float, *, stranger: bool = False
) -> bytes:
    """The body of a request. It has to arrive within a time limit, and is not read at all if it
    says that it is too large. A `stranger` has not logged in yet."""
    most, announced = request.client_max_size, request.content_length or 0
    if stranger:
        most = min(most, HELLO_BYTES_MAX)
    if announced > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=announced)
    try:
        async with asyncio.timeout(timeout_seconds):
            return await (_read_little(request, most) if stranger else request.read())
    except TimeoutError:
        raise RequestTimeoutError(
            f"The body did not come within {timeout_seconds} s (web.body_timeout_seconds)."
        ) from None


async def _read_little(request: web.Request, most: int) -> bytes:
    """A body, also one that does not say how large it is."""
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > most:
            raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=len(data))
    return bytes(data)


class _Field(NamedTuple):
    """A parameter. It may be absent but never null, although its field may be None. One of `names`
    is given as `header.NAME`."""

    name: str
    kind: Any
    several: bool
    names: bool
    required: bool


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    found: dict[str, _Field] = {}
    for given in msgspec.structs.fields(kind):
        options = [option for option in get_args(given.type) if option is not type(None)]
        optional = type(None) in get_args(given.type)
        inner: Any = Union[tuple(options)] if optional else given.type  # noqa: UP007 - of a tuple
        bare = get_args(inner)[0] if get_origin(inner) is Annotated else inner
        found[given.encode_name] = _Field(
            given.name,
            inner,
            get_origin(bare) in (list, tuple),
            get_origin(bare) is dict,
            given.required,
        )
    return found


def read_query(request: web.Request, kind: type[Q]) -> Q:
    """The parameters behind the question mark, as the route's type has them."""
    known = _fields(kind)
    given: dict[str, Any] = {}
    for name in dict.fromkeys(request.query):
        values = request.query.getall(name)
        group, _, member = name.partition(".")
        if member and group in known and known[group].names:
            given.setdefault(group, {})[member] = values
            continue
        if name not in known or known[name].names:
            names = ", ".join(known) or "none"
            raise InvalidArgumentError(f"There is no parameter {name!r} here; known: {names}.")
        if len(values) > 1 and not known[name].several:
            raise InvalidArgumentError(f"The parameter {name!r} appears {len(values)} times.")
        given[name] = values if known[name].several else values[0]
    converted: dict[str, Any] = {}
    for name, wanted in known.items():
        if name in given:
            converted[wanted.name] = _convert(name, given[name], wanted.kind)
        elif wanted.required:
            raise InvalidArgumentError(f"The parameter {name!r} is missing.")
    return cast("Any", kind)(**converted)


def _convert(name: str, given: Any, kind: Any) -> Any:
    if isinstance(given, str) and _is_time(kind) and _NUMBER.fullmatch(given):
        # msgspec would take it for seconds since 1970.
        raise InvalidArgumentError(
            f"The parameter {name!r} is invalid: give a time such as 2026-01-31T12:00:00Z."
        )
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as fault:
        raise InvalidArgumentError(
            f"The parameter {name!r} is invalid: {explained(fault, inspect.type_info(kind))}."
        ) from None


def _is_time(kind: Any) -> bool:
    return dt.datetime in (kind, *get_args(kind))


def decode_body(data: bytes, kind: Any) -> Any:
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as fault:
            # In JSON 1.0 is an integer; some programs write it so.
            if "`int`, got `float`" not in str(fault):
                raise
            return msgspec.convert(_with_integers(msgspec.json.decode(data)), kind)
    except msgspec.ValidationError as fault:
        what = explained(fault, inspect.type_info(kind))
        raise InvalidArgumentError(f"The body is invalid: {what}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidArgumentError(
            f"The body is not JSON: {fault}. See /v1/reference for the body of this path."
        ) from None


def _with_integers(value: Any) -> Any:
    match value:
        case dict():
            entries = cast("dict[str, Any]", value).items()
            return {name: _with_integers(entry) for name, entry in entries}
        case list():
            return [_with_integers(entry) for entry in cast("list[Any]", value)]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def adapted(
    route: Route, listener: WebPort
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The route as aiohttp wants it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        query = read_query(request, route.query)
        if route.verb is not None:
            name = request.match_info[route.about] if route.about else ""
            Call(request, listener, query, None).permit.ask(route.verb, name)
        body: Any = None
        if route.body is not None:
            limit, guest = (
                listener.options.body_timeout_seconds,
                listener.entrance.guest_of(request),
            )
            data = await read_body(request, limit, stranger=not guest.logged_in)
            body = data if route.body is bytes else decode_body(data, route.body)
        call = Call(request, listener, query, body)
        answer = await (_noted(route, call) if route.action else route.handler(call))
        if isinstance(answer, web.StreamResponse):
            return answer
        if answer is None:
            return web.Response(status=204)
        return web.Response(
            status=route.status,
            body=msgspec.json.encode(answer),
            content_type="application/json",
        )

    return handle


async def _noted(route: Route, call: Call[Any, Any]) -> RouteAnswer:
    """Handles a request that changes something, and has the audit log say so."""
    audit = call.bus.core.audit
    name = "/".join(call.request.match_info.values()) or getattr(call.body, "name", "")
    try:
        answer = await route.handler(call)
    except ForbiddenError:
        raise  # It was noted when the request came.
    except FanlogError as fault:
        audit.note(call.permit.who, route.action, name, "failed", fault.code)
        raise
    if isinstance(answer, web.StreamResponse) and answer.status >= 400:
        audit.note(call.permit.who, route.action, name, "failed", str(answer.status))
    elif not getattr(call.body, "dry_run", False):
        detail = "" if route.detail is None else route.detail(call)
        audit.note(call.permit.who, route.action, name, "ok", detail)
    return answer
