"""Request and reply over REST: the answer to a message is the answer to the HTTP request."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from fanlog.errors import (
    InvalidArgumentError,
    NoRespondersError,
    RequestFailedError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from fanlog.format.web import OutgoingMessage, says_json, value_json
from fanlog.identity import Verb
from fanlog.listeners.web.ports import MessageToPublish
from fanlog.listeners.web.publish_limits import charge_request
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.tracing import TRACE, PublishSpans


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for the answer."""

    timeout_seconds: Annotated[
        float, Meta(gt=0, description="How long to wait for the answer.")
    ] = 5.0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Its value is one of `json`, `text` and `base64`."""

    headers: dict[str, str] | UnsetType = UNSET
    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    deleted: bool | UnsetType = UNSET


_decode = msgspec.json.Decoder(Reply).decode
# Headers that route the answer back; the caller does not need them.
_OWN = "fanlog-"


async def ask(call: Call[RequestQuery, OutgoingMessage]) -> Reply:
    topic = call.path("topic")
    permit = call.permit
    permit.ask(Verb.PUBLISH, topic)
    key, value, headers = call.body.record()
    message = MessageToPublish(value, key, headers or {})
    charge_request(call.bus, permit, topic, [message])
    timeout_seconds = min(call.query.timeout_seconds, call.listener.options.wait_seconds_max)
    spans = PublishSpans(call.request, call.bus.core.traces)
    [message] = spans.begin(topic, [message])
    try:
        answer = await call.bus.request(topic, message, timeout_seconds)
    except BaseException as error:
        spans.end(None, error)
        raise
    spans.end(None)
    shown = {
        name: text.decode(errors="replace")
        for name, text in answer.headers.items()
        if not name.lower().startswith(_OWN)
    }
    said = says_json(tuple((name.encode(), text) for name, text in answer.headers.items()))
    reply = _decode("{" + value_json(answer.value, said=said) + "}")
    return msgspec.structs.replace(reply, headers=shown or UNSET)


ROUTES = [
    Route(
        "POST",
        "/v1/request/{topic}",
        ask,
        "Publish a request, and wait for its answer",
        "requests",
        query=RequestQuery,
        headers=(TRACE,),
        body=OutgoingMessage,
        answer=Reply,
        errors=(
            InvalidArgumentError,
            NoRespondersError,
            RequestFailedError,
            RequestTimeoutError,
            TopicNotFoundError,
        ),
    ),
]
