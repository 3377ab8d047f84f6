"""Traces over HTTP: a request's `traceparent` goes on in its messages, and `/v1/traces` shows what
the broker did, without a collector."""

from __future__ import annotations

from typing import Any

import pytest

from fanlog.config import Config
from fanlog.config_security import TelemetryOptions
from fanlog.format.trace_context import TraceContext, context_of
from fanlog.identity import Identity, Verb
from fanlog.security.rules import forbidden
from tests.listeners.web.conftest import Serving, Site

ASKED = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))
TRACE = ASKED.trace_id.hex()
HEADERS = {"traceparent": ASKED.traceparent, "tracestate": "shop=1"}


async def spans_of(site: Site, path: str = f"/v1/traces/{TRACE}") -> list[dict[str, Any]]:
    async with site.http.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["spans"]


async def test_a_publish_over_http_goes_on_with_the_trace_of_its_request(serving: Serving) -> None:
    async with serving() as site:
        path = "/v1/topics/orders/messages"
        async with site.http.post(path, json={"text": "tea"}, headers=HEADERS) as answer:
            assert answer.status == 200
        publish, append = await spans_of(site)
        assert (publish["name"], publish["kind"]) == ("publish orders", "producer")
        assert publish["parent_id"] == ASKED.span_id.hex()
        assert publish["attributes"]["messaging.fanlog.offset"] == 0
        assert (append["name"], append["parent_id"]) == ("append orders", publish["span_id"])
        async with site.broker.subscribe("orders", start="earliest") as reader:
            message = await reader.next()
        context = context_of(message.headers)
        assert context is not None
        assert (context.trace_id.hex(), context.span_id.hex()) == (TRACE, publish["span_id"])
        assert message.headers["tracestate"] == b"shop=1"
        assert [s["name"] for s in await spans_of(site, "/v1/traces?limit=1")] == ["deliver orders"]
        assert await spans_of(site, "/v1/traces?topic=other") == []
        assert await spans_of(site, f"/v1/traces/{'ab' * 16}") == []


async def test_several_messages_have_a_span_each_and_their_own_header_wins(
    serving: Serving,
) -> None:
    own = TraceContext(b"o" * 16, b"o" * 8)
    body = {
        "publish": [
            {"topic": "a", "messages": [{"text": "1"}, {"text": "2"}]},
            {"topic": "b", "text": "3", "headers": {"traceparent": own.traceparent}},
            {"topic": "a", "text": "4"},
        ]
    }
    async with serving() as site:
        async with site.http.post("/v1/publish", json=body, headers=HEADERS) as answer:
            assert answer.status == 200
        published = [s for s in await spans_of(site) if s["name"] == "publish a"]
        assert [s["attributes"]["messaging.fanlog.offset"] for s in published] == [0, 1, 2]
        [other] = [
            s
            for s in await spans_of(site, f"/v1/traces/{own.trace_id.hex()}")
            if "pub" in s["name"]
        ]
        assert (other["name"], other["parent_id"]) == ("publish b", own.span_id.hex())


async def test_a_retry_is_the_same_message_in_another_span(serving: Serving) -> None:
    async with serving() as site:
        stored = []
        for span in (b"a", b"b"):
            headers = {
                "traceparent": ASKED._replace(span_id=span * 8).traceparent,
                "Idempotency-Key": "k",
            }
            path = "/v1/topics/t/messages"
            async with site.http.post(path, json={"text": "x"}, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                stored.append(await answer.json())
        assert stored[0] == stored[1]
        assert sum(s["name"] == "append t" for s in await spans_of(site)) == 1


@pytest.mark.parametrize("given", ["nonsense", ASKED._replace(sampled=False).traceparent, None])
async def test_without_a_sampled_trace_there_are_no_spans(
    serving: Serving, given: str | None
) -> None:
    async with serving() as site:
        headers = {} if given is None else {"traceparent": given}
        path = "/v1/topics/t/messages"
        async with site.http.post(path, json={"text": "x"}, headers=headers) as answer:
            assert answer.status == 200
        assert await spans_of(site, "/v1/traces") == []


async def test_a_publish_that_fails_says_why_in_its_span(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("state", cleanup="compact")
        path = "/v1/topics/state/messages"
        async with site.http.post(path, json={"text": "x"}, headers=HEADERS) as answer:
            assert answer.status == 400
        [publish] = await spans_of(site)
        assert publish["attributes"]["error.type"] == "invalid_argument"
        assert "key" in publish["error"]


async def test_the_broker_begins_a_trace_over_http_for_its_share(serving: Serving) -> None:
    config = Config(telemetry=TelemetryOptions(trace_ratio=1.0))
    async with serving(config) as site:
        path = "/v1/topics/t/messages"
        async with site.http.post(path, json={"text": "x"}) as answer:
            assert answer.status == 200
        spans = {span["name"]: span for span in await spans_of(site, "/v1/traces")}
        assert spans["publish t"]["parent_id"] == ""
        assert spans["append t"]["parent_id"] == spans["publish t"]["span_id"]


async def test_a_bad_trace_id_is_refused(serving: Serving) -> None:
    async with serving() as site, site.http.get("/v1/traces/xyz") as answer:
        assert answer.status == 400
        assert (await answer.json())["code"] == "invalid_argument"


async def test_spans_of_topics_that_one_may_not_describe_are_not_shown(serving: Serving) -> None:
    async with serving() as site:
        for topic in ("open", "secret"):
            await site.broker.publish(topic, b"x", headers={"traceparent": ASKED.traceparent})
        site.listener.bus.core.authority = Denying()
        assert {span["name"] for span in await spans_of(site)} == {"append open"}


class Denying:
    """Nobody may describe the topic `secret`."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        if name == "secret":
            raise forbidden(who, verb, name)
