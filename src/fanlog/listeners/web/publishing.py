"""Publishing over REST: one message or many, as JSON or as a plain body, to one topic or several.

| the body                                          | is                                          |
| ------------------------------------------------- | ------------------------------------------- |
| any, with `?raw=true`                             | the message                                 |
| `application/json`                                | a message as JSON, or `{"messages": [...]}` |
| of no type, or a form's, which is what `curl -d`  | the same if it begins with `{` or `[`, else |
| says                                              | the message                                 |
| of any other type                                 | the message; its type becomes the header    |
|                                                   | `content-type`                              |

`Fanlog-Key` and `Fanlog-Header-NAME` are the key and the headers of a message that is the body, and
of others that have none of their own.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from fanlog.client.core.once_core import ONCE_KEY_BYTES_MAX
from fanlog.errors import (
    InvalidArgumentError,
    InvalidNameError,
    KeyReusedError,
    LimitError,
    MessageTooLargeError,
    PartitionNotFoundError,
    StorageError,
    TopicNotFoundError,
    wrong_value,
)
from fanlog.format.web import CONTENT_TYPE, OutgoingMessage
from fanlog.identity import Verb
from fanlog.listeners.web.audited import publish_as
from fanlog.listeners.web.openapi_names import NAME_PATTERN, NOT_INTERNAL
from fanlog.listeners.web.ports import MessageToPublish, Published
from fanlog.listeners.web.publish_limits import charge_request
from fanlog.listeners.web.routes import Call, Nothing, Param, Route
from fanlog.listeners.web.tracing import TRACE, PublishSpans
from fanlog.model import PARTITIONS_MAX

KEY_HEADER = "Fanlog-Key"
HEADER_PREFIX = "Fanlog-Header-"
IDEMPOTENCY_KEY = "Idempotency-Key"
_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"

PartitionNumber = Annotated[
    int,
    Meta(
        ge=0,
        lt=PARTITIONS_MAX,
        description="The partition to publish to. By default the key chooses it.",
    ),
]


TopicName = Annotated[
    str,
    Meta(min_length=1, max_length=255, extra_json_schema={"pattern": NAME_PATTERN, **NOT_INTERNAL}),
]


class PublishQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How to take the body."""

    raw: Annotated[
        bool,
        Meta(
            description="Publish the body unchanged as one message, whatever its type, even if "
            "it is JSON."
        ),
    ] = False
    partition: PartitionNumber | None = None


class Publication(OutgoingMessage, kw_only=True, forbid_unknown_fields=True):
    """A message to publish, or several as `messages`."""

    messages: (
        Annotated[list[OutgoingMessage], Meta(description="Several messages, in order.")]
        | UnsetType
    ) = UNSET


class MessageList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several messages, in order."""

    messages: Annotated[list[OutgoingMessage], Meta(min_length=1)]


class TopicPublication(Publication, kw_only=True, forbid_unknown_fields=True):
    """A message for a topic, or several."""

    topic: TopicName


class TopicMessage(OutgoingMessage, kw_only=True, forbid_unknown_fields=True):
    """A message for a topic."""

    topic: TopicName


class TopicMessageList(MessageList, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several messages for a topic, in order."""

    topic: TopicName


class Publications(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages for several topics."""

    publish: Annotated[list[TopicPublication], Meta(min_length=1, max_length=1000)]


class PublishedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the messages are, in the order in which they were given."""

    published: list[Published]


_decode = msgspec.json.Decoder(Publication).decode


async def publish(call: Call[PublishQuery, bytes]) -> PublishedAnswer:
    topic, request = call.path("topic"), call.request
    permit = call.permit
    permit.ask(Verb.PUBLISH, topic)
    given = _messages(request, call.body, call.query)
    charge_request(call.bus, permit, topic, given)
    spans = PublishSpans(request, call.bus.core.traces)
    wanted = spans.begin(topic, given)
    try:
        dedupe = _idempotency_key(request)
        stored = await publish_as(call.permit.who, call.bus, topic, wanted, dedupe=dedupe)
    except BaseException as error:
        spans.end(None, error)
        raise
    spans.end(stored)
    return PublishedAnswer(published=stored)


async def publish_all(call: Call[Nothing, Publications]) -> PublishedAnswer:
    permit, dedupe = call.permit, _idempotency_key(call.request)
    spans = PublishSpans(call.request, call.bus.core.traces)
    wanted: dict[str, list[MessageToPublish]] = {}
    order: list[tuple[str, int]] = []
    for one in call.body.publish:
        permit.ask(Verb.PUBLISH, one.topic)
    for one in call.body.publish:
        messages = wanted.setdefault(one.topic, [])
        for message in spans.begin(one.topic, _outgoing(one)):
            order.append((one.topic, len(messages)))
            messages.append(message)
    try:
        for topic, messages in wanted.items():
            charge_request(call.bus, permit, topic, messages)
        stored = {
            topic: await publish_as(permit.who, call.bus, topic, messages, dedupe=dedupe)
            for topic, messages in wanted.items()
        }
    except BaseException as error:
        spans.end(None, error)
        raise
    published = [stored[topic][index] for topic, index in order]
    spans.end(published)
    return PublishedAnswer(published=published)


def _idempotency_key(request: web.Request) -> str:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return ""
    # Some clients quote it: the draft of the standard wants a structured string.
    key = key.strip().strip('"')
    if not 1 <= len(key.encode(errors="replace")) <= ONCE_KEY_BYTES_MAX:
        raise InvalidArgumentError(
            f"The header {IDEMPOTENCY_KEY} has 1 to {ONCE_KEY_BYTES_MAX} bytes. "
            "Use a UUID, for example."
        )
    return key


def _messages(request: web.Request, body: bytes, query: PublishQuery) -> list[MessageToPublish]:
    said = "Content-Type" in request.headers
    kind = request.content_type if said else _FORM
    if not query.raw and (kind == _JSON or (kind == _FORM and body.lstrip()[:1] in (b"{", b"["))):
        return _outgoing(_envelope(body), query.partition, *_from_headers(request))
    if not body and kind == _FORM and not query.raw:
        raise InvalidArgumentError(
            "The body is empty. Send the message as the body. To publish an empty "
            "message, add ?raw=true."
        )
    key, headers = _from_headers(request)
    if said and kind != _FORM:
        headers.setdefault(CONTENT_TYPE, _bytes(request.headers["Content-Type"]))
    return [MessageToPublish(body, key, headers, query.partition)]


def _envelope(body: bytes) -> Publication:
    try:
        return _decode(body)
    except msgspec.ValidationError as fault:
        raise InvalidArgumentError(
            f"The body is JSON, but not a message: {wrong_value(str(fault))}. Put the value into "
            '`json`, `text` or `base64`, such as {"key": "order-1", "json": {...}}, and several '
            "messages into `messages`; or add ?raw=true to publish the body as it is."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidArgumentError(
            f"The body is not JSON: {fault}. To publish it as it is, add ?raw=true, or give it "
            "another Content-Type, such as text/plain."
        ) from None


def _outgoing(
    given: Publication,
    partition: int | None = None,
    key: bytes | None = None,
    headers: dict[str, bytes] | None = None,
) -> list[MessageToPublish]:
    """The messages. `key` and `headers` are for those that have none of their own."""
    if given.messages is UNSET:
        several: list[OutgoingMessage] = [given]
    elif not given.messages:
        raise InvalidArgumentError("`messages` is empty: there is nothing to publish.")
    elif _fields(given) - {"messages", "topic"}:
        raise InvalidArgumentError(
            "`messages` excludes a single message beside it. Put that message into the list too."
        )
    else:
        several = given.messages
    found: list[MessageToPublish] = []
    for message in several:
        own_key, value, own = message.record()
        found.append(
            MessageToPublish(
                value,
                key if own_key is None else own_key,
                {**(headers or {}), **(own or {})},
                partition,
            )
        )
    return found


def _fields(given: Any) -> set[str]:
    """The fields of a message that are not as they would be without it."""
    fields = msgspec.structs.fields(given)
    return {f.name for f in fields if getattr(given, f.name) is not f.default}


def _from_headers(request: web.Request) -> tuple[bytes | None, dict[str, bytes]]:
    key = request.headers.get(KEY_HEADER)
    headers = {
        name[len(HEADER_PREFIX) :].lower(): _bytes(value)
        for name, value in request.headers.items()
        if name.lower().startswith(HEADER_PREFIX.lower()) and len(name) > len(HEADER_PREFIX)
    }
    return None if key is None else _bytes(key), headers


def _bytes(value: str) -> bytes:
    """A header as it was sent: aiohttp reads it as UTF-8, and keeps what is not."""
    return value.encode("utf-8", "surrogateescape")


_ERRORS = (
    InvalidArgumentError,
    InvalidNameError,
    TopicNotFoundError,
    PartitionNotFoundError,
    MessageTooLargeError,
    KeyReusedError,
    LimitError,
    StorageError,
)

_RETRY = Param(
    IDEMPOTENCY_KEY,
    "The broker publishes nothing again if a retry has the same key, and gives the same answer."
    " For example a UUID.",
    {"minLength": 1, "maxLength": ONCE_KEY_BYTES_MAX},
)
_ANSWER = {"published": [{"topic": "orders", "partition": 0, "offset": 41, "position": "42.3.7"}]}

ROUTES = [
    Route(
        "POST",
        "/v1/topics/{topic}/messages",
        publish,
        "Publish one message, or several",
        "messages",
        description="A JSON body is one message, or several in `messages`. Any other body is "
        "itself the message, with its key and headers in `Fanlog-Key` and `Fanlog-"
        "Header-NAME`. `curl -d` sends JSON if the data begins with a brace.",
        query=PublishQuery,
        headers=(
            _RETRY,
            Param(KEY_HEADER, "The key of messages that have no key of their own."),
            Param(f"{HEADER_PREFIX}NAME", "A header of the messages. NAME is its name."),
            TRACE,
        ),
        body=bytes,
        bodies={
            _JSON: (OutgoingMessage, MessageList),
            "text/plain": str,
            "application/octet-stream": bytes,
        },
        example={"key": "order-1", "json": {"tea": 2}},
        answer=PublishedAnswer,
        answer_example=_ANSWER,
        errors=_ERRORS,
    ),
    Route(
        "POST",
        "/v1/publish",
        publish_all,
        "Publish to several topics",
        "messages",
        headers=(_RETRY, TRACE),
        body=Publications,
        types=(TopicMessage, TopicMessageList),
        example={
            "publish": [
                {"topic": "orders", "key": "order-1", "json": {"tea": 2}},
                {"topic": "log", "messages": [{"text": "one"}, {"text": "two"}]},
            ]
        },
        answer=PublishedAnswer,
        errors=_ERRORS,
    ),
]
