"""`/metrics`, `/v1/metrics` and the health checks, as their clients see them."""

from __future__ import annotations

from tests.listeners.web.conftest import Serving


async def test_prometheus_gets_text_and_openmetrics_if_it_asks(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("orders", "x")
        async with site.http.get("/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert answer.headers["Cache-Control"] == "no-store"
            assert 'fanlog_connections{listener="web"} 1.0' in await answer.text()
        accept = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"}
        async with site.http.get("/metrics", headers=accept) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert (await answer.text()).endswith("# EOF\n")


async def test_details_of_a_topic_are_there_on_demand(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.create_topic("orders", partitions=3)
        await site.broker.publish("orders", "x")
        async with site.http.get("/v1/metrics?topic=orders") as answer:
            told = await answer.json()
            assert [topic["name"] for topic in told["topics"]] == ["orders"]
            assert told["topics"][0]["published_messages"] == 1
            assert len(told["details"]["partitions"]) == 3
        async with site.http.get("/v1/metrics?topic=missing") as answer:
            assert (answer.status, (await answer.json())["code"]) == (404, "topic_not_found")
        async with site.http.get("/v1/metrics") as answer:
            assert "details" not in await answer.json() or (await answer.json())["details"] is None


async def test_a_process_says_why_it_is_not_ready(serving: Serving) -> None:
    async with serving() as site:
        core = site.listener.core
        async with site.http.get("/healthz/ready") as answer:
            assert (answer.status, await answer.json()) == (200, {"ready": True, "reasons": []})
        core._store.reserve.full = True
        async with site.http.get("/healthz/ready") as answer:
            told = await answer.json()
            assert (answer.status, told["reasons"]) == (503, ["Its disk is full."])
            assert answer.headers["Retry-After"]
        core._store.reserve.full = False
        core.draining = True
        async with site.http.get("/healthz/ready") as answer:
            assert answer.status == 503
            assert "draining" in (await answer.json())["reasons"][0]
        # It is to be left alone until it has drained, and not killed.
        async with site.http.get("/healthz/live") as answer:
            assert (answer.status, await answer.json()) == (200, {"live": True})
        core.draining = False
        site.listener.bus.up = False
        async with site.http.get("/healthz/ready") as answer:
            assert (await answer.json())["reasons"] == ["The upstream is away."]
        site.listener.bus.up = True
