"""Whatever changes something is in the audit log, whichever listener it came by: who, what, to
what, from where, and with which result.

The tables name every frame and every route: one that is added is either audited, or named here as
one that changes nothing an operator would ask about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import fanlog
from fanlog.config import Config, ListenerOptions, RedisOptions
from fanlog.config_security import AuditOptions
from fanlog.config_web import WebOptions
from fanlog.errors import ForbiddenError
from fanlog.format.batch import Batch, split_batches
from fanlog.identity import Identity, Verb
from fanlog.listeners.audited import AUDITED
from fanlog.listeners.native import HANDLERS
from fanlog.listeners.web.app import ROUTES
from fanlog.node import Node
from fanlog.security.audit import AUDIT_TOPIC, AuditRecord, decode_record
from fanlog.security.rules import forbidden
from tests.listeners.peers import HOST, PATIENCE_SECONDS
from tests.listeners.redis.wire import command

# Frames that change nothing but what their own connection, member or worker has, and messages.
UNAUDITED_FRAMES = (
    "ABORT_TRANSACTION BEGIN_TRANSACTION COMMIT COMMITTED CREDIT DESCRIBE_GROUP DESCRIBE_TOPIC "
    "FETCH FIND_OFFSETS GOODBYE JOIN_GROUP LIST_GROUPS LIST_SCHEDULED LIST_SCHEDULES LIST_TOPICS "
    "PING REGISTER_PRODUCER RELEASE SEEK SETTLE STAGE STATUS SUBSCRIBE UNSUBSCRIBE WORK "
    "LOGIN METRICS PIPELINE_RUN TRACED TRACES "
    # They note by themselves what has changed: they know what is secret, and what was done.
    "ACCOUNTS CONFIG CONNECTIONS VOUCH "
    # Of followers: the primary sends them what it has.
    "FOLLOW REPLICA_ENDS APPLIED"
)
UNAUDITED_PATHS = {
    "/v1/topics/{topic}/messages",
    "/v1/publish",
    "/v1/queues/{topic}/{queue}/take",
    "/v1/queues/{topic}/{queue}/ack",
    "/v1/queues/{topic}/{queue}/nack",
    "/v1/queues/{topic}/{queue}/reject",
    "/v1/queues/{topic}/{queue}/extend",
    "/v1/request/{topic}",
    "/v1/streams/{name}",
    "/v1/streams/{name}/append",
    "/v1/streams/{name}/end",
    "/v1/users/{user}/messages",
    "/v1/broadcast",
    "/v1/config",
    "/v1/config/reload",
    "/v1/connections/{connection}",
    # `ask_accounts` notes what is done to keys and users, for all listeners.
    "/v1/keys",
    "/v1/keys/{key}",
    "/v1/keys/{key}/rotate",
    "/v1/users",
    "/v1/users/{user}",
    "/v1/users/{user}/password",
    # The gate notes logins, and a ticket is part of one. The end of a session notes itself.
    "/v1/login",
    "/v1/logout",
    "/v1/tickets",
}


def test_every_frame_that_changes_something_is_audited() -> None:
    unaudited = {kind.name for kind in HANDLERS} - {kind.name for kind in AUDITED}
    assert unaudited <= set(UNAUDITED_FRAMES.split())


def test_every_route_that_changes_something_is_audited() -> None:
    changing = [route for route in ROUTES if route.method not in ("GET", "HEAD")]
    missing = {route.path for route in changing if not route.action} - UNAUDITED_PATHS
    assert missing == set()


class Rules:
    """Allows everything but what is about the topic `secret`."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        if name == "secret":
            raise forbidden(who, verb, name)


class Audited:
    """A broker with all listeners, and its audit log."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.url = f"fanlog://{HOST}:{node.listen().port}"
        self.redis = node.listen_redis().port
        self.web = ""

    async def records(self, count: int) -> list[AuditRecord]:
        """The audit log, once it has so many records."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                found = await self._read()
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.01)

    async def _read(self) -> list[AuditRecord]:
        topic = self.node.core.catalog.find(AUDIT_TOPIC)
        if topic is None:
            return []
        (partition,) = topic.partitions
        found: list[AuditRecord] = []
        while len(found) < partition.visible_end:
            got: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.node.core.reading.fetch(partition, len(found), 1 << 20, got.set_result)
            for piece in await got:
                for at, header in split_batches(piece):
                    batch = Batch(piece[at : at + header.length], header)
                    found += [decode_record(bytes(value or b"")) for value in batch.values]
        return found

    async def done(self, count: int) -> list[tuple[str, str, str]]:
        return [(r.action, r.name, r.result) for r in await self.records(count)]


@asynccontextmanager
async def audited(
    folder: Path | None, level: Any = "denials", redis: RedisOptions | None = None, **node: Any
) -> AsyncIterator[Audited]:
    config = Config(
        listener=ListenerOptions(host=HOST, port=0, drain_seconds=0.0),
        redis=redis or RedisOptions(host=HOST, port=0),
        web=WebOptions(port=0),
        audit=AuditOptions(level=level),
    )
    made = Node(folder, config, **node)
    made.start()
    try:
        served = Audited(made)
        site = await made.listen_web()
        served.web = f"http://{HOST}:{site.port}"
        yield served
    finally:
        await made.stop()


async def test_changes_over_the_native_protocol_are_audited(data: Path) -> None:
    async with audited(data) as on, fanlog.connect(on.url, name="ops") as client:
        await client.create_topic("orders", partitions=2, retention_seconds=9)
        await client.create_topic("orders", exist_ok=True)
        await client.grow_topic("orders", 3)
        await client.alter_topic("orders", retention_seconds=60)
        await client.publish("orders", "one", key="k")
        await client.publish("jobs", "a job")
        await client.delete_records("orders", {0: 0})
        await client.create_topic("state", cleanup="compact")
        await client.compact_topic("state")
        with pytest.raises(fanlog.FanlogError):
            await client.delete_topic("not-there")
        await client.add_schedule("tick", "jobs", "now", every_seconds=3600)
        await client.remove_schedule("tick")
        async with client.subscribe("jobs", start="earliest", durable="reader") as reading:
            message = await anext(aiter(reading))
            await reading.commit(message)
        await client.delete_topic("orders")
        assert (await on.done(10))[:10] == [
            ("topic.create", "orders", "ok"),
            ("topic.grow", "orders", "ok"),
            ("topic.alter", "orders", "ok"),
            ("topic.create", "jobs", "ok"),
            ("topic.truncate", "orders", "ok"),
            ("topic.create", "state", "ok"),
            ("topic.compact", "state", "ok"),
            ("schedule.add", "tick", "ok"),
            ("schedule.remove", "tick", "ok"),
            ("topic.delete", "orders", "ok"),
        ]
        failed = (await on.records(11))[-1]
        assert (failed.action, failed.result, failed.detail) == (
            "topic.delete",
            "failed",
            "topic_not_found",
        )
        first = (await on.records(1))[0]
        assert (first.listener, first.detail) == ("native", "partitions=2, retention_seconds=9")
        assert first.address.startswith(f"{HOST}:")


async def test_groups_queues_and_dead_letters_are_audited(data: Path) -> None:
    async with audited(data) as on, fanlog.connect(on.url) as client:
        await client.create_topic("jobs")
        await client.publish("jobs", "a job")
        async with client.work("jobs", queue="workers") as worker:
            await (await worker.next(PATIENCE_SECONDS)).reject("broken")
        dead = await dead_letter(client)
        await client.groups.reset("workers", "earliest", dry_run=True)
        await client.groups.reset("workers", "latest")
        await client.groups.delete("workers")
        await client.dead_letters.replay("dead.jobs", [dead])
        done = await on.done(4)
        assert done[-3:] == [
            ("queue.reset", "workers", "ok"),
            ("queue.delete", "workers", "ok"),
            ("dead.replay", "dead.jobs", "ok"),
        ]


async def dead_letter(client: fanlog.Client) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                found = await client.dead_letters.list("dead.jobs")
            except fanlog.TopicNotFoundError:
                found = []
            if found:
                return found[0].id
            await asyncio.sleep(0.01)


async def test_changes_over_http_are_audited_with_who_made_them(data: Path) -> None:
    async with audited(data) as on, aiohttp.ClientSession(on.web) as http:
        headers = {"Fanlog-User": "ana"}
        steps: list[tuple[str, str, Any]] = [
            ("POST", "/v1/topics", {"name": "orders"}),
            ("PATCH", "/v1/topics/orders", {"retention_seconds": 60}),
            ("POST", "/v1/topics/orders/grow", {"partitions": 2}),
            ("POST", "/v1/topics/orders/truncate", {"offsets": {"0": 0}}),
            ("POST", "/v1/topics/new/messages", {"json": 1}),
            ("POST", "/v1/users/bob/disconnect", None),
            ("DELETE", "/v1/topics/orders", None),
        ]
        for method, path, body in steps:
            async with http.request(method, path, json=body, headers=headers) as answer:
                assert answer.status < 300, await answer.text()
        async with http.delete("/v1/groups/nobody", headers=headers) as answer:
            assert answer.status == 404
        records = await on.records(8)
        assert [(r.action, r.name, r.result) for r in records] == [
            ("topic.create", "orders", "ok"),
            ("topic.alter", "orders", "ok"),
            ("topic.grow", "orders", "ok"),
            ("topic.truncate", "orders", "ok"),
            ("topic.create", "new", "ok"),
            ("user.disconnect", "bob", "ok"),
            ("topic.delete", "orders", "ok"),
            ("group.delete", "nobody", "failed"),
        ]
        assert {(r.user, r.listener) for r in records} == {("ana", "web")}
        assert records[1].detail == "retention_seconds=60"


async def test_a_connection_that_a_redis_client_kills_is_audited() -> None:
    async with audited(None) as on:
        reader, writer = await asyncio.open_connection(HOST, on.redis)
        host, port = writer.get_extra_info("sockname")
        await told(on, "CLIENT", "KILL", "ADDR", f"{host}:{port}")
        assert await reader.read() == b""
        assert await on.done(1) == [("connection.close", f"{host}:{port}", "ok")]
        writer.close()


async def test_wrong_passwords_of_redis_clients_are_audited_without_them() -> None:
    redis = RedisOptions(host=HOST, port=0, password="right")
    async with audited(None, redis=redis) as on:
        for password in ("hunter2", "right"):
            await told(on, "AUTH", password)
        (record,) = await on.records(1)
        assert (record.action, record.result, record.detail) == ("login", "failed", "password")
        assert record.name == "default"


async def told(on: Audited, *words: str) -> bytes:
    """The line that a Redis command is answered with."""
    reader, writer = await asyncio.open_connection(HOST, on.redis)
    writer.write(command(*words))
    answer = await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
    writer.close()
    return answer


async def test_what_is_refused_is_audited_once_on_every_listener() -> None:
    async with audited(None, authority=Rules()) as on:
        async with fanlog.connect(on.url) as client:
            with pytest.raises(ForbiddenError):
                await client.delete_topic("secret")
        async with (
            aiohttp.ClientSession(on.web) as http,
            http.delete("/v1/topics/secret") as answer,
        ):
            assert answer.status == 403
        assert (await told(on, "PUBLISH", "secret", "x")).startswith(b"-NOPERM")
        records = await on.records(3)
        assert {(r.listener, r.action, r.name, r.result) for r in records} == {
            ("native", "manage", "secret", "denied"),
            ("web", "manage", "secret", "denied"),
            ("redis", "publish", "secret", "denied"),
        }


async def test_readers_are_audited_with_the_level_all(data: Path) -> None:
    async with audited(data, "all") as on, fanlog.connect(on.url) as client:
        await client.create_topic("orders")
        async with client.subscribe("orders"):
            await client.describe_topic("orders")
        records = await on.records(3)
        assert {(r.action, r.name) for r in records} == {
            ("topic.create", "orders"),
            ("subscribe", "orders"),
            ("describe", "orders"),
        }


async def test_a_level_of_off_makes_no_topic(data: Path) -> None:
    async with audited(data, "off") as on, fanlog.connect(on.url) as client:
        await client.create_topic("orders")
        assert on.node.core.catalog.find(AUDIT_TOPIC) is None


async def test_control_characters_in_a_name_are_escaped() -> None:
    async with audited(None) as on, fanlog.connect(on.url) as client:
        with pytest.raises(fanlog.FanlogError):
            await client.delete_topic("a\n\x1b[31mb")
        (record,) = await on.records(1)
        assert record.name == "a\\n\\x1b[31mb"


async def test_the_audit_log_is_whole_after_a_restart(data: Path) -> None:
    for name in ("one", "two"):
        async with audited(data) as on, fanlog.connect(on.url) as client:
            await client.create_topic(name)
            found = await on.records(1 if name == "one" else 2)
    assert [(r.seq, r.name) for r in found] == [(0, "one"), (1, "two")]
