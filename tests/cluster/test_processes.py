"""Three nodes as processes of their own, with a real etcd: what clients see when nodes are killed,
paused, stopped and started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
import redis.asyncio

import fanlog
from fanlog.security.dev_certificates import open_authority
from fanlog.security.keys import make_key
from tests.cluster.processes import ClusterProcesses
from tests.cluster.workload import PATIENCE_SECONDS, Workload, while_working
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.scenarios.broker_process import BrokerProcess

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def etcd(tmp_path: Path) -> Generator[EtcdServers]:
    with etcd_servers(tmp_path) as servers:
        yield servers


@pytest.fixture
def cluster(tmp_path: Path, etcd: EtcdServers) -> Generator[ClusterProcesses]:
    with closing(ClusterProcesses(tmp_path, etcd)) as nodes:
        nodes.start()
        yield nodes


async def test_nothing_acknowledged_is_lost_or_there_twice_when_nodes_are_killed(
    cluster: ClusterProcesses,
) -> None:
    dice = random.Random(16)

    async def kill_nodes(workload: Workload) -> None:
        for turn in range(4):
            primary = await asyncio.to_thread(cluster.primary)
            others = [node for node in cluster.nodes if node != primary]
            node = cluster.nodes[dice.choice(others) if turn % 2 else primary]
            node.kill()
            await workload.more(20)
            node.start()
            await asyncio.to_thread(cluster.wait_whole)
            await workload.more(20)

    workload = await while_working(cluster.url, kill_nodes)
    for node in cluster.nodes.values():
        await workload.check_node(node.url)


async def test_a_paused_primary_is_replaced_and_follows_when_it_goes_on(
    cluster: ClusterProcesses,
) -> None:
    async def pause(workload: Workload) -> None:
        first = cluster.primary()
        cluster.nodes[first].pause()
        await asyncio.to_thread(
            cluster.wait_until,
            lambda record: not record.primary.startswith(f"{first}."),
            "another primary",
        )
        await workload.more(20)
        cluster.nodes[first].resume()
        await asyncio.to_thread(cluster.wait_whole)

    await while_working(cluster.url, pause)


async def test_a_rolling_restart_shows_no_client_an_error(cluster: ClusterProcesses) -> None:
    async def restart_all(workload: Workload) -> None:
        for node in cluster.nodes.values():
            assert await asyncio.to_thread(node.stop) == 0
            await workload.more(10)
            node.start()
            await asyncio.to_thread(cluster.wait_whole)

    await while_working(cluster.url, restart_all)


async def test_all_nodes_may_be_stopped_and_go_on_later(cluster: ClusterProcesses) -> None:
    async with fanlog.connect(cluster.url, wait_seconds=PATIENCE_SECONDS) as client:
        for number in range(50):
            await client.publish("t", str(number))
    for node in cluster.nodes.values():
        node.stop()
    cluster.start()
    async with (
        fanlog.connect(cluster.url, wait_seconds=PATIENCE_SECONDS) as client,
        client.subscribe("t", start="earliest") as reader,
    ):
        await client.publish("t", "50")
        values = [(await reader.next(PATIENCE_SECONDS)).text for _ in range(51)]
    assert values == [str(number) for number in range(51)]


async def test_a_single_nodes_folder_becomes_the_first_of_a_cluster(
    tmp_path: Path, etcd: EtcdServers
) -> None:
    with BrokerProcess(tmp_path / "a") as alone:
        async with fanlog.connect(alone.url) as client:
            for number in range(50):
                await client.publish("t", str(number))
        assert alone.stop() == 0
    with closing(ClusterProcesses(tmp_path, etcd)) as cluster:
        cluster.nodes["a"].start("--adopt")
        cluster.wait_until(lambda record: record.primary.startswith("a."), "a begins the cluster")
        cluster.nodes["b"].start()
        cluster.nodes["c"].start()
        cluster.wait_whole()
        for node in cluster.nodes.values():
            async with (
                fanlog.connect(node.url, wait_seconds=PATIENCE_SECONDS) as client,
                client.subscribe("t", start="earliest") as reader,
            ):
                values = [(await reader.next(PATIENCE_SECONDS)).text for _ in range(50)]
            assert values == [str(number) for number in range(50)]


async def test_nodes_with_certificates_and_logins_replicate_and_let_clients_in_everywhere(
    tmp_path: Path, etcd: EtcdServers
) -> None:
    authority = open_authority(tmp_path)
    certificate, key = authority.issue("broker", ["localhost", "127.0.0.1"])
    admin, admin_key = tmp_path / "admin.key", make_key()
    admin.write_text(admin_key)
    admin.chmod(0o600)
    settings = tmp_path / "fanlog.toml"
    settings.write_text(
        f"""
[tls]
certificate_file = "{certificate}"
private_key_file = "{key}"
[security]
auth = true
admin_key_file = "{admin}"
[cluster]
key_file = "{admin}"
tls_ca_file = "{authority.ca_file}"
"""
    )
    flags = ("--config", str(settings))
    with closing(ClusterProcesses(tmp_path, etcd, "abc", *flags)) as cluster:
        cluster.start()
        for node in cluster.nodes.values():
            url = node.url.replace("fanlog:", "fanlogs:")
            options = {"tls_ca_file": str(authority.ca_file), "wait_seconds": PATIENCE_SECONDS}
            async with fanlog.connect(url, key=admin_key, **options) as client:
                receipt = await client.publish("t", node.node)
                async with client.subscribe("t", start="earliest") as reader:
                    values = [
                        (await reader.next(PATIENCE_SECONDS)).text
                        for _ in range(receipt.offset + 1)
                    ]
            assert values == list("abc")[: receipt.offset + 1]
            with pytest.raises(fanlog.errors.UnauthenticatedError):
                await fanlog.connect(url, key="wrong", **options)


async def test_redis_and_web_clients_may_come_to_any_node(cluster: ClusterProcesses) -> None:
    for node in cluster.nodes.values():
        async with fanlog.connect(node.url, wait_seconds=PATIENCE_SECONDS):
            # The node has opened its ports.
            pass
    listeners = [redis.asyncio.Redis(port=node.redis_port) for node in cluster.nodes.values()]
    subscribed = [listener.pubsub(ignore_subscribe_messages=True) for listener in listeners]
    try:
        for one in subscribed:
            await one.subscribe("news")
        for number, listener in enumerate(listeners):
            await listener.publish("news", str(number))
        for one in subscribed:
            heard: list[bytes] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(heard) < 3:
                    message = await one.get_message(timeout=1.0)
                    heard += [message["data"]] if message else []
            assert sorted(heard) == [b"0", b"1", b"2"]
    finally:
        for one in (*subscribed, *listeners):
            await one.aclose()
    async with aiohttp.ClientSession() as session:
        for node in cluster.nodes.values():
            url = f"http://127.0.0.1:{node.http_port}/v1/topics/web/messages"
            async with session.post(url, data=node.node.encode()) as answer:
                assert answer.status == 200, await answer.text()
    async with (
        fanlog.connect(cluster.url) as client,
        client.subscribe("web", start="earliest") as reader,
    ):
        assert [(await reader.next(PATIENCE_SECONDS)).text for _ in range(3)] == list("abc")


async def test_a_second_node_with_the_same_id_waits_and_pushes_nobody_aside(
    tmp_path: Path, cluster: ClusterProcesses
) -> None:
    (tmp_path / "other").mkdir()
    before = cluster.record()
    with closing(ClusterProcesses(tmp_path / "other", cluster.etcd, cluster.primary())) as others:
        (second,) = others.nodes.values()
        second.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "Give this one another id" not in second.said():  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.1)
        async with fanlog.connect(cluster.url) as client:
            await client.publish("t", "still here")
        assert cluster.record() == before
