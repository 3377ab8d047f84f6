"""The reign that an operator begins: only when nothing else helps, and above all that was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanlog.cluster.forced_reign import forced_reign
from fanlog.cluster.operating import FoundCluster, ask_to_join
from fanlog.cluster.records import ClusterKeys, encode
from fanlog.cluster.snapshot import ClusterSnapshot, cluster_of
from fanlog.errors import InvalidArgumentError, UnavailableError
from tests.cluster.three_nodes import three_nodes, until
from tests.cluster.views import node, record, snapshot
from tests.simulation.memory_etcd import MemoryCoordination, MemoryEtcd


def test_nobody_is_forced_while_a_node_in_sync_is_alive() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing has to be lost"):
        forced_reign(snapshot(record(), "b.1", "c.2"), "c", accept_loss=True)


def test_nodes_that_lack_something_do_not_keep_an_operator_from_choosing_one() -> None:
    """Each of them waits for another one that has it."""
    b, c = node("b.1", damaged=True), node("c.1", copying=True)
    cluster = snapshot(record(in_sync=("b.1", "c.1")), b, c)
    with pytest.raises(InvalidArgumentError, match="may lack messages"):
        forced_reign(cluster, "b", accept_loss=False)
    assert forced_reign(cluster, "b", accept_loss=True).primary == "b.1"


def test_a_node_that_is_not_alive_is_not_forced() -> None:
    with pytest.raises(UnavailableError, match="start it first"):
        forced_reign(snapshot(record(), "c.2"), "b", accept_loss=True)


def test_an_operator_hears_first_what_may_be_lost() -> None:
    with pytest.raises(InvalidArgumentError, match="may lack messages"):
        forced_reign(snapshot(record(), "c.2"), "c", accept_loss=False)
    forced = forced_reign(snapshot(record(), "c.2"), "c", accept_loss=True)
    assert forced.forced_epoch == forced.epoch > 5
    assert (forced.primary, forced.in_sync) == ("c.2", ("c.2",))


def test_a_copy_that_is_not_whole_is_not_forced() -> None:
    cluster = snapshot(record(), node("c.2", copying=True))
    with pytest.raises(UnavailableError, match="copy of c is not whole"):
        forced_reign(cluster, "c", accept_loss=True)


def test_a_forced_reign_leaves_room_for_reigns_that_only_dead_nodes_have_seen() -> None:
    """Otherwise an epoch could have two writers, and their records would look the same."""
    forced = forced_reign(snapshot(record(), "c.2"), "c", accept_loss=True)
    assert forced.epoch - record().epoch >= 100


def test_after_a_restored_etcd_the_reign_is_above_all_that_was_seen() -> None:
    cluster = snapshot(record(), node("a.1", epoch=9, revision=40), "b.1")
    with pytest.raises(InvalidArgumentError, match="was the primary last"):
        forced_reign(cluster, "a", accept_loss=False)
    assert forced_reign(cluster, "a", accept_loss=True).epoch > 9


def test_another_etcd_with_the_same_record_takes_an_operator_too() -> None:
    cluster = snapshot(record(), node("a.1", epoch=5, revision=40, etcd="before"), etcd="after")
    assert forced_reign(cluster, "a", accept_loss=True).epoch > 5


async def test_a_cluster_goes_on_after_its_etcd_was_restored(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as cluster:
        await cluster.start("a", "b", "c")
        first = await cluster.whole()
        backup = cluster.etcd.backup()
        await cluster.stop(first)
        await until(lambda: cluster.primary() not in ("", first))
        last = cluster.primary()
        async with await cluster.connect(last) as client:
            await client.create_topic("t", durability="os")
            await client.publish("t", b"after the backup")
        cluster.etcd.restore(backup)
        await until(lambda: not cluster.primary())
        await until(lambda: all("gone back" in n.problem for n in cluster.nodes.values()))

        keys = ClusterKeys("test")

        def now_in_etcd() -> ClusterSnapshot:
            return cluster_of(cluster.etcd.list(keys.prefix), keys)

        await until(lambda: any(n.problem for n in now_in_etcd().nodes if n.node == last))
        found = now_in_etcd()
        forced = forced_reign(found, last, accept_loss=True)
        cluster.etcd.swap(keys.shard(), cluster.etcd.get(keys.shard()), encode(forced))
        await until(lambda: cluster.primary() == last)
        await cluster.start(first)
        await cluster.whole()
        async with await cluster.connect(last) as client:
            async for message in client.subscribe("t", start="earliest"):
                assert message.text == "after the backup"
                break


async def test_an_operator_changes_no_record_that_a_node_has_seen_a_newer_one_of() -> None:
    """The change would get a newer revision, and nodes would take the old record for the next."""
    etcd = MemoryEtcd(lambda: 0.0)
    coordination, keys = MemoryCoordination(etcd), ClusterKeys("test")
    await coordination.swap(keys.shard(), None, encode(record()))
    listing = await coordination.read_prefix(keys.prefix)
    cluster = snapshot(record(), node("a.1", epoch=9, revision=400), node("d.1"))
    found = FoundCluster(
        "test", keys, coordination, listing, cluster, record(), listing.stored[0], ()
    )
    with pytest.raises(UnavailableError, match="Restored etcd"):
        await ask_to_join(found, "d", "ann@host")
    assert await coordination.read_prefix(keys.prefix) == listing
