"""One suite over both backends of `Coordination`: a real etcd, and the one of the simulation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from fanlog.cluster.coordination import Coordination, Listing, Lost, Stored, Swapped
from fanlog.cluster.etcd import Etcd
from fanlog.cluster.etcd_address import EtcdAddress
from tests.etcd_servers import etcd_servers
from tests.simulation.memory_etcd import MemoryCoordination, MemoryEtcd

Connect = Callable[[], Coordination]
PREFIX = "/fanlog/test/"
KEY = f"{PREFIX}shards/0"
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with etcd_servers(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers.urls[0]


@pytest.fixture(params=["memory", "etcd"])
def connect(request: pytest.FixtureRequest) -> Connect:
    if request.param == "memory":
        etcd = MemoryEtcd(time.monotonic)
        return lambda: MemoryCoordination(etcd, lease_seconds=2)
    url: str = request.getfixturevalue("real")
    address = EtcdAddress(endpoints=(url,), request_seconds=20.0, lease_seconds=2)
    return lambda: Etcd(address)


@asynccontextmanager
async def connected(connect: Connect, count: int = 1) -> AsyncIterator[list[Coordination]]:
    """So many clients, and no keys of tests before."""
    async with AsyncExitStack() as stack:
        clients: list[Coordination] = []
        for _ in range(count):
            client = connect()
            stack.push_async_callback(client.close)
            clients.append(client)
        for stored in (await clients[0].read_prefix(PREFIX)).stored:
            await clients[0].delete(stored.key, stored)
        yield clients


async def until(listings: AsyncIterator[Listing], wanted: dict[str, bytes]) -> Listing:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for listing in listings:
            if {one.key: one.value for one in listing.stored} == wanted:
                return listing
    raise AssertionError("the watch ended")


async def test_a_key_is_created_by_one_of_two_racers(connect: Connect) -> None:
    async with connected(connect, 2) as (one, two):
        assert await one.read(KEY) is None
        outcomes = await asyncio.gather(one.swap(KEY, None, b"1"), two.swap(KEY, None, b"2"))
        (won,) = [outcome for outcome in outcomes if isinstance(outcome, Swapped)]
        (lost,) = [outcome for outcome in outcomes if isinstance(outcome, Lost)]
        stored = await one.read(KEY)
        assert stored is not None
        assert stored.revision == won.revision
        assert lost.current == stored
        assert stored.value == (b"1" if outcomes[0] == won else b"2")


async def test_a_swap_compares_revision_and_value(connect: Connect) -> None:
    async with connected(connect) as (etcd,):
        first = await etcd.swap(KEY, None, b"\x00\xffone")
        assert isinstance(first, Swapped)
        expected = Stored(KEY, b"\x00\xffone", first.revision)
        assert await etcd.swap(KEY, expected._replace(value=b"other"), b"2") == Lost(expected)
        older = expected._replace(revision=first.revision - 1)
        assert await etcd.swap(KEY, older, b"2") == Lost(expected)
        assert isinstance(await etcd.swap(KEY, expected, b"2"), Swapped)
        assert isinstance(await etcd.swap(KEY, expected, b"3"), Lost)


async def test_a_deleted_key_is_lost_to_who_expects_it(connect: Connect) -> None:
    async with connected(connect) as (etcd,):
        await etcd.swap(KEY, None, b"1")
        stored = await etcd.read(KEY)
        assert stored is not None
        assert isinstance(await etcd.delete(KEY, stored), Swapped)
        assert await etcd.swap(KEY, stored, b"2") == Lost(None)
        assert await etcd.delete(KEY, stored) == Lost(None)


async def test_a_listing_has_the_keys_under_its_prefix(connect: Connect) -> None:
    async with connected(connect) as (etcd,):
        before = await etcd.read_prefix(PREFIX)
        assert before.stored == ()
        assert before.etcd
        for key in (f"{PREFIX}b", f"{PREFIX}a", "/fanlog/test.other"):
            await etcd.swap(key, await etcd.read(key), key.encode())
        listing = await etcd.read_prefix(PREFIX)
        assert [one.key for one in listing.stored] == [f"{PREFIX}a", f"{PREFIX}b"]
        assert listing.revision == before.revision + 3
        assert listing.etcd == before.etcd
        assert not listing.has_gone_back


async def test_a_watch_begins_with_all_and_shows_each_change(connect: Connect) -> None:
    async with connected(connect, 2) as (watcher, writer), aclosing(watcher.watch(PREFIX)) as seen:
        await until(seen, {})
        await writer.swap(KEY, None, b"1")
        listing = await until(seen, {KEY: b"1"})
        (stored,) = listing.stored
        assert stored == await writer.read(KEY)
        await writer.swap(KEY, stored, b"2")
        await until(seen, {KEY: b"2"})
        stored = await writer.read(KEY)
        assert stored is not None
        await writer.delete(KEY, stored)
        await until(seen, {})


async def test_a_leased_key_lives_with_its_client_and_ends_when_it_closes(
    connect: Connect,
) -> None:
    node = f"{PREFIX}nodes/a"
    async with connected(connect) as (watcher,), aclosing(watcher.watch(PREFIX)) as seen:
        holder = connect()
        try:
            await holder.put_leased(node, b"1")
            await until(seen, {node: b"1"})
            await holder.put_leased(node, b"2")
            first = await until(seen, {node: b"2"})
            # Longer than the lease.
            await asyncio.sleep(3)
            assert (await watcher.read_prefix(PREFIX)).stored == first.stored
        finally:
            await holder.close()
        await until(seen, {})
