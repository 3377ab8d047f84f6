"""Topics that come and go while a subscription begins: readers are told in order, and miss
nothing. What a client reads back is bounded."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from fanlog.broker.messages.latest_values import LatestUse
from fanlog.broker.ports import Reader
from fanlog.listeners.web.connection import WebConnection
from fanlog.listeners.web.following import FollowedSubscription, Following, WantedSubscription
from tests.client.ways import until
from tests.listeners.web.conftest import Serving, Site
from tests.listeners.web.event_source import following
from tests.listeners.web.wire import TEXT, encode_frame, handshake, raw


def _appear_meanwhile(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the topic a.two while the latest values of another one are collected."""
    ready = LatestUse.ready

    async def slow(use: LatestUse) -> None:
        monkeypatch.setattr(LatestUse, "ready", ready)
        await site.broker.publish("a.two", b"2")
        await ready(use)

    monkeypatch.setattr(LatestUse, "ready", slow)


async def test_events_of_a_topic_that_appears_while_a_stream_begins(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site:
        await site.broker.create_topic("a.one", cleanup="compact")
        await site.broker.publish("a.one", b"1", key=b"k")
        _appear_meanwhile(site, monkeypatch)
        path = "/v1/stream?topic=a.*&latest=true"
        async with following(site.http, path) as source:
            assert (await source.next()).kind == "subscribed"
            assert (await source.next("snapshot")).data["text"] == "1"
            assert (await source.next("joined")).data["topic"] == "a.two"
            assert await source.text() == "2"
            await site.broker.publish("a.two", b"3")
            assert await source.text() == "3"
        await site.broker.publish("a.two", b"4")
        async with following(site.http, path, source.id) as source:
            assert await source.text() == "4"


async def test_a_client_hears_of_its_subscription_before_its_new_topics(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as site, raw(site.listener.port) as client:
        await client.told("welcome")
        await site.broker.create_topic("a.one", cleanup="compact")
        _appear_meanwhile(site, monkeypatch)
        client.say(op="subscribe", id=1, target="a.*", latest=True)
        assert (await client.told())["ok"]["target"] == "a.*"
        assert (await client.told())["type"] == "snapshot"
        joined = await client.told()
        assert (joined["type"], joined["topic"]) == ("joined", "a.two")
        frame = await client.told()
        assert (frame["type"], frame["messages"][0]["text"]) == ("messages", "2")


async def test_a_topic_that_goes_while_its_latest_values_are_shown(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    writable = WebConnection.writable
    async with serving() as site:
        for topic in ("a.one", "a.two"):
            await site.broker.create_topic(topic, cleanup="compact")
            await site.broker.publish(topic, topic.encode(), key=b"k")

        async def slow(connection: WebConnection) -> None:
            monkeypatch.setattr(WebConnection, "writable", writable)
            await site.broker.delete_topic("a.one")
            await writable(connection)

        monkeypatch.setattr(WebConnection, "writable", slow)
        async with following(site.http, "/v1/stream?topic=a.*&latest=true") as source:
            assert (await source.next("left")).data["topic"] == "a.one"
            await site.broker.publish("a.two", b"more", key=b"k")
            assert await source.text() == "more"
            assert "a.one" not in source.id


async def test_a_stream_that_is_sent_away_as_it_begins_leaves_nothing_behind(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Following.begin
    async with serving() as site:
        await site.broker.create_topic("one")

        async def slow(
            own: Following, wanted: WantedSubscription, reader: Reader, client: str
        ) -> FollowedSubscription:
            followed = await begin(own, wanted, reader, client)
            await site.broker.grow_topic("one", 2)
            return followed

        monkeypatch.setattr(Following, "begin", slow)
        path = "/v1/topics/one/stream?presence=true&user=ann"
        async with following(site.http, path) as source:
            await source.next("reconnect")
        await until(lambda: site.listener.connection_count() == 0)
        assert not len(site.listener.connections)
        assert not site.listener.presence.snapshot("one").connections


async def test_a_page_of_history_is_bounded_by_its_bytes(serving: Serving) -> None:
    async with (
        serving(message_bytes_max=100_000) as site,
        raw(site.listener.port) as client,
    ):
        for i in range(40):
            await site.broker.publish("t", f"{i:02}".encode() + b"x" * 30_000)
        found: list[str] = []
        before = None
        while True:
            page = (await client.ask(op="history", topic="t", limit=40, before=before))["ok"]
            assert 1 <= len(page["messages"]) <= 4
            found = [message["text"][:2] for message in page["messages"]] + found
            before = page["before"]
            if before is None:
                break
        assert found == [f"{i:02}" for i in range(40)]


async def test_history_waits_for_a_client_that_does_not_read(serving: Serving) -> None:
    async with serving() as site:
        await site.broker.publish("t", b"x" * 800_000)
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", site.listener.port))
            client.setblocking(False)
            await loop.sock_sendall(client, handshake())
            for i in range(40):
                wanted = json.dumps({"op": "history", "topic": "t", "id": i}).encode()
                await loop.sock_sendall(client, encode_frame(TEXT, wanted))
            await until(lambda: any(stream.kept_bytes for stream in site.listener.streams))
            (stuck,) = site.listener.streams
            for _ in range(200):
                await site.broker.publish("other", b"")
            assert stuck.kept_bytes < 2_000_000
            taken = 0
            while taken < 40 * 800_000:
                taken += len(await loop.sock_recv(client, 1 << 20))
