"""The client of etcd against real ones: members that die, pause and come back, logins, TLS, and an
etcd that was restored from a backup."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanlog.cluster.coordination import Listing, NotSent, Stored, Unknown
from fanlog.cluster.etcd import Etcd
from fanlog.cluster.etcd_address import EtcdAddress
from fanlog.errors import ConfigError, CoordinationError, CoordinationRefusedError
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.servers import free_port
from tests.tls.papers import Papers

PREFIX = "/fanlog/test/"
KEY = f"{PREFIX}shards/0"
NODE = f"{PREFIX}nodes/a"
PATIENCE_SECONDS = 120.0


@asynccontextmanager
async def client(*urls: str, **more: Any) -> AsyncIterator[Etcd]:
    settings: dict[str, Any] = {"request_seconds": 3.0, "lease_seconds": 6, **more}
    etcd = Etcd(EtcdAddress(endpoints=urls, **settings))
    try:
        yield etcd
    finally:
        await etcd.close()


async def swapped(etcd: Etcd, value: bytes) -> Stored:
    """Swaps as a node does: reads again and tries again until the value is there."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                current = await etcd.read(KEY)
                if current is not None and current.value == value:
                    return current
                await etcd.swap(KEY, current, value)
            except CoordinationError:
                await asyncio.sleep(0.1)


async def listed(etcd: Etcd, wanted: dict[str, bytes]) -> Listing:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                listing = await etcd.read_prefix(PREFIX)
                if {one.key: one.value for one in listing.stored} == wanted:
                    return listing
            except CoordinationError:
                pass
            await asyncio.sleep(0.1)


async def watched(etcd: Etcd, wanted: bytes, seen: list[bytes]) -> None:
    """Watches as a node does, again after each fault, until the key has this value."""
    while wanted not in seen:
        try:
            async with aclosing(etcd.watch(PREFIX)) as listings:
                async for listing in listings:
                    seen += [one.value for one in listing.stored if one.value not in seen]
                    if wanted in seen:
                        return
        except CoordinationError:
            await asyncio.sleep(0.1)


# Three members


@pytest.mark.parametrize("fault", ["kill the leader", "pause the leader", "pause a follower"])
async def test_one_member_of_three_may_fail(tmp_path: Path, fault: str) -> None:
    with etcd_servers(tmp_path, members=3) as servers:
        leader = await asyncio.to_thread(servers.leader)
        others = [member for member in servers.members if member is not leader]
        failing = others[0] if "follower" in fault else leader
        # The client asks the failing one first.
        urls = (failing.url, *(one.url for one in servers.members if one is not failing))
        async with client(*urls) as etcd, client(*urls, watch_silence_seconds=5.0) as watcher:
            await swapped(etcd, b"before")
            seen: list[bytes] = []
            watching = asyncio.create_task(watched(watcher, b"after", seen))
            await etcd.put_leased(NODE, b"alive")
            await listed(etcd, {KEY: b"before", NODE: b"alive"})
            if "kill" in fault:
                failing.kill()
            else:
                failing.pause()
            await swapped(etcd, b"after")
            await asyncio.wait_for(watching, PATIENCE_SECONDS)
            await listed(etcd, {KEY: b"after", NODE: b"alive"})


async def test_without_a_majority_everything_is_not_now_and_then_goes_on(tmp_path: Path) -> None:
    with etcd_servers(tmp_path, members=3) as servers:
        async with client(*servers.urls) as etcd:
            first = await swapped(etcd, b"before")
            for member in servers.members[1:]:
                member.pause()
            with pytest.raises(CoordinationError) as raised:
                await etcd.read(KEY)
            assert not isinstance(raised.value, CoordinationRefusedError)
            assert isinstance(await etcd.swap(KEY, first, b"unknown"), Unknown | NotSent)
            for member in servers.members[1:]:
                member.resume()
            await listed_any(etcd, {b"before", b"unknown"})
            await swapped(etcd, b"after")


async def listed_any(etcd: Etcd, values: set[bytes]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                stored = await etcd.read(KEY)
            except CoordinationError:
                await asyncio.sleep(0.1)
                continue
            assert stored is not None
            assert stored.value in values
            return


async def test_a_watch_on_a_member_without_a_leader_ends(tmp_path: Path) -> None:
    with etcd_servers(tmp_path, members=3) as servers:
        leader = await asyncio.to_thread(servers.leader)
        lonely, other = (member for member in servers.members if member is not leader)
        # Silence ends no watch here.
        async with client(lonely.url, watch_silence_seconds=600.0) as etcd:
            await swapped(etcd, b"before")
            watch = etcd._follow(PREFIX, await etcd.read_prefix(PREFIX))
            following = asyncio.create_task(all_of(watch))
            # It has begun.
            await asyncio.sleep(1.0)
            assert not following.done()
            for member in (leader, other):
                member.pause()
            assert await asyncio.wait_for(following, PATIENCE_SECONDS) == []


async def all_of(watch: AsyncGenerator[Listing]) -> list[Listing]:
    return [listing async for listing in watch]


# One member


async def test_nothing_listens_there(tmp_path: Path) -> None:
    async with client(f"http://127.0.0.1:{free_port()}") as etcd:
        assert isinstance(await etcd.swap(KEY, None, b"1"), NotSent)
        with pytest.raises(CoordinationError, match="does not answer"):
            await etcd.read(KEY)


async def test_a_swap_that_may_have_arrived_is_unknown(tmp_path: Path) -> None:
    with etcd_servers(tmp_path) as servers:
        # Long enough to connect on a busy machine: without a connection it is not sent.
        async with client(*servers.urls, request_seconds=15.0) as etcd:
            (member,) = servers.members
            member.pause()
            outcome = await etcd.swap(KEY, None, b"1")
            assert isinstance(outcome, Unknown), outcome
            member.resume()
            # It has happened, or the same again makes it happen.
            await swapped(etcd, b"1")


async def test_a_loop_that_hangs_loses_its_lease_and_gets_it_back(tmp_path: Path) -> None:
    with etcd_servers(tmp_path) as servers:
        async with client(*servers.urls, lease_seconds=6) as etcd:
            await etcd.put_leased(NODE, b"alive")
            await listed(etcd, {NODE: b"alive"})
            deadline = time.monotonic() + PATIENCE_SECONDS
            # The loop does not run, and the thread of the lease does.
            while _value_of(servers, NODE) is not None and time.monotonic() < deadline:
                time.sleep(0.2)  # noqa: ASYNC251
            assert _value_of(servers, NODE) is None
            await listed(etcd, {NODE: b"alive"})


def _value_of(servers: EtcdServers, key: str) -> bytes | None:
    """Asks without an event loop."""
    body = json.dumps({"key": base64.b64encode(key.encode()).decode()}).encode()
    request = urllib.request.Request(f"{servers.urls[0]}/v3/kv/range", data=body)
    with urllib.request.urlopen(request, timeout=30.0) as response:
        return b"there" if "kvs" in json.loads(response.read()) else None


async def test_an_etcd_that_was_restored_has_gone_back(tmp_path: Path) -> None:
    with etcd_servers(tmp_path) as servers:
        (member,) = servers.members
        async with client(*servers.urls) as etcd:
            old = await swapped(etcd, b"1")
            member.stop()
            data = member.folder / member.name
            shutil.copytree(data, tmp_path / "backup")
            member.start(servers.cluster)
            await listed(etcd, {KEY: b"1"})
            for value in (b"2", b"3"):
                await swapped(etcd, value)
            member.stop()
            shutil.rmtree(data)
            shutil.copytree(tmp_path / "backup", data)
            member.start(servers.cluster)
            listing = await listed(etcd, {KEY: b"1"})
            assert listing.has_gone_back
            assert listing.stored[0].revision == old.revision
            assert not (await etcd.read_prefix(PREFIX)).has_gone_back


async def test_a_watch_of_what_was_compacted_lists_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with etcd_servers(tmp_path) as servers:
        async with client(*servers.urls) as etcd:
            await swapped(etcd, b"1")
            old = await etcd.read_prefix(PREFIX)
            for value in (b"2", b"3", b"4"):
                newest = await swapped(etcd, value)
            _ask(servers, "kv/compaction", {"revision": str(newest.revision)})
            lists = etcd.read_prefix
            asked: list[Listing] = []

            async def list_late(prefix: str) -> Listing:
                """The first time, what was there before it was compacted."""
                asked.append(await lists(prefix) if asked else old)
                return asked[-1]

            monkeypatch.setattr(etcd, "read_prefix", list_late)
            async with asyncio.timeout(PATIENCE_SECONDS), aclosing(etcd.watch(PREFIX)) as watch:
                assert await anext(watch) == old
                assert (await anext(watch)).stored == (newest,)
            assert len(asked) == 2


async def test_a_login_is_made_again_when_its_token_is_gone(tmp_path: Path) -> None:
    with etcd_servers(tmp_path) as servers:
        _enable_logins(servers)
        login = {"user": "root", "password": "secret"}
        async with client(*servers.urls, **login) as etcd:
            await swapped(etcd, b"1")
            # A restart forgets tokens.
            servers.members[0].stop()
            servers.members[0].start(servers.cluster)
            await swapped(etcd, b"2")
            await etcd.put_leased(NODE, b"alive")
            await listed(etcd, {KEY: b"2", NODE: b"alive"})
        for wrong in ({"user": "root", "password": "guess"}, {}):
            async with client(*servers.urls, **wrong) as etcd:
                with pytest.raises(CoordinationRefusedError):
                    await etcd.read(KEY)


def _enable_logins(servers: EtcdServers) -> None:
    for path, fields in (
        ("user/add", {"name": "root", "password": "secret"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("enable", {}),
    ):
        _ask(servers, f"auth/{path}", fields)


def _ask(servers: EtcdServers, path: str, fields: dict[str, str]) -> None:
    body = json.dumps(fields).encode()
    request = urllib.request.Request(f"{servers.urls[0]}/v3/{path}", data=body)
    urllib.request.urlopen(request, timeout=30.0).close()


async def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    papers = Papers(tmp_path / "papers")
    certificate, key = papers.broker
    files = (f"--cert-file={certificate}", f"--key-file={key}")
    with etcd_servers(tmp_path, *files, scheme="https") as servers:
        async with client(*servers.urls, ca=papers.ca) as etcd:
            await swapped(etcd, b"1")
            await etcd.put_leased(NODE, b"alive")
            await listed(etcd, {KEY: b"1", NODE: b"alive"})
        async with client(*servers.urls) as etcd:
            with pytest.raises(CoordinationRefusedError, match="TLS"):
                await etcd.read(KEY)


# Addresses


@pytest.mark.parametrize("url", ["", "etcd:2379", "ftp://etcd:2379", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="address of etcd"):
        Etcd(EtcdAddress(endpoints=(url,)))


def test_certificates_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="certificates"):
        Etcd(EtcdAddress(endpoints=("https://localhost:2379",), ca="/nowhere"))


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(EtcdAddress(endpoints=("http://e:1",), password="secret"))
