"""Faults: each does one thing to a cluster, for as long as its `async with` lasts, and is undone.

A fault yields what it hit, for the progress. Those that are `alone` need a cluster that is whole
otherwise; two others may come at the same time.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.cluster.chaos.clock import find_library
from tests.cluster.chaos.network import CLIENTS, has_netem
from tests.cluster.chaos.site import Site
from tests.cluster.processes import CLUSTER, PATIENCE_SECONDS, NodeProcess, Patience


@dataclass
class Scene:
    """The site, and who is hit by a fault at the moment."""

    site: Site
    dice: random.Random
    hit: set[str] = field(default_factory=set[str])

    def choose(self, *, follower: bool = False) -> NodeProcess:
        """A node that no other fault has: the primary as often as the others together."""
        nodes = self.site.cluster.nodes
        primary = self.site.cluster.primary()
        free = [name for name in nodes if name not in self.hit]
        others = [name for name in free if name != primary]
        if primary in free and not follower:
            free = [*others, *[primary] * max(1, len(others))]
        elif others:
            free = others
        chosen = self.dice.choice(free)
        self.hit.add(chosen)
        return nodes[chosen]

    def show(self, node: NodeProcess) -> str:
        return f"{node.node}*" if node.node == self.site.cluster.primary() else node.node


Run = Callable[[Scene], AbstractAsyncContextManager[str]]


# Processes


@asynccontextmanager
async def _kill(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    shown = scene.show(node)
    node.kill()
    yield shown
    node.start()


@asynccontextmanager
async def _pause(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    shown = scene.show(node)
    node.pause()
    yield shown
    node.resume()


@asynccontextmanager
async def _stop(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    shown = scene.show(node)
    code = await asyncio.to_thread(node.stop)
    assert code == 0, f"{node.node} was stopped and ended with {code}"
    yield shown
    node.start()


# The network


@asynccontextmanager
async def _isolate(scene: Scene) -> AsyncIterator[str]:
    """A node and its etcd are cut from the other two; clients reach all of them."""
    async with _cut(scene, hears=False, is_heard=False) as shown:
        yield shown


@asynccontextmanager
async def _vanish(scene: Scene) -> AsyncIterator[str]:
    """The same, and clients don't reach it either."""
    async with _cut(scene, hears=False, is_heard=False, clients=True) as shown:
        yield shown


@asynccontextmanager
async def _deafen(scene: Scene) -> AsyncIterator[str]:
    """One way: it hears nothing from the other two, which hear it."""
    async with _cut(scene, hears=False, is_heard=True) as shown:
        yield shown


@asynccontextmanager
async def _mute(scene: Scene) -> AsyncIterator[str]:
    """One way: the other two hear nothing from it."""
    async with _cut(scene, hears=True, is_heard=False) as shown:
        yield shown


@asynccontextmanager
async def _cut(
    scene: Scene, *, hears: bool, is_heard: bool, clients: bool = False
) -> AsyncIterator[str]:
    hosts = scene.site.hosts
    node = scene.choose()
    shown = scene.show(node)
    host = hosts[node.node]
    others = [other for other in hosts.values() if other is not host]
    if not hears:
        host.deaf.update(other.address for other in others)
    if clients:
        host.deaf.add(CLIENTS)
    if not is_heard:
        for other in others:
            other.deaf.add(host.address)
    _apply(scene)
    yield shown
    host.deaf.clear()
    for other in others:
        other.deaf.discard(host.address)
    _apply(scene)


@asynccontextmanager
async def _split_two(scene: Scene) -> AsyncIterator[str]:
    """Two nodes don't hear each other; the third one hears both."""
    one, two = scene.choose(), scene.choose()
    shown = f"{scene.show(one)}|{scene.show(two)}"
    first, second = (scene.site.hosts[node.node] for node in (one, two))
    first.deaf.add(second.address)
    second.deaf.add(first.address)
    _apply(scene)
    yield shown
    first.deaf.discard(second.address)
    second.deaf.discard(first.address)
    _apply(scene)


@asynccontextmanager
async def _hide_etcd(scene: Scene) -> AsyncIterator[str]:
    """A node reaches no member of etcd. The members, and the nodes, reach each other."""
    node = scene.choose()
    shown = scene.show(node)
    host = scene.site.hosts[node.node]
    host.deaf_ports.update((member.host, member.port) for member in scene.site.etcd.members)
    _apply(scene)
    yield shown
    host.deaf_ports.clear()
    _apply(scene)


@asynccontextmanager
async def _slow_link(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    shown = scene.show(node)
    host = scene.site.hosts[node.node]
    if has_netem():
        delay_ms = scene.dice.choice((20, 100, 400))
        host.shape("netem", "delay", f"{delay_ms}ms", f"{delay_ms // 4}ms")
        shown += f" {delay_ms} ms"
    else:
        # So narrow that packets wait for each other.
        kbit = scene.dice.choice((256, 1024, 4096))
        host.shape("tbf", "rate", f"{kbit}kbit", "burst", "16kb", "latency", "800ms")
        shown += f" {kbit} kbit/s"
    yield shown
    host.shape()


@asynccontextmanager
async def _lossy_link(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    host = scene.site.hosts[node.node]
    host.loss_percent = scene.dice.choice((2, 10, 30))
    shown = f"{scene.show(node)} {host.loss_percent} %"
    _apply(scene)
    yield shown
    host.loss_percent = 0
    _apply(scene)


def _apply(scene: Scene) -> None:
    for host in scene.site.hosts.values():
        host.apply()


# Disks and clocks


@asynccontextmanager
async def _fill_disk(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    shown = scene.show(node)
    disk = scene.site.disks[node.node]
    await asyncio.to_thread(disk.fill)
    yield shown
    disk.free()


@asynccontextmanager
async def _jump_clock(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    seconds = scene.dice.choice((-86_400, -3_600, -10, 10, 3_600, 86_400))
    shown = f"{scene.show(node)} {seconds:+,} s"
    clock = scene.site.clocks[node.node]
    clock.jump(seconds)
    yield shown
    clock.jump(0)


@asynccontextmanager
async def _flip_bit(scene: Scene) -> AsyncIterator[str]:
    """In a segment of a follower that is killed, and has to notice when it starts."""
    node = scene.choose(follower=True)
    node.kill()
    where = await asyncio.to_thread(scene.site.disks[node.node].flip_bit, scene.dice)
    yield f"{node.node} {where}"
    node.start()


@asynccontextmanager
async def _rot(scene: Scene) -> AsyncIterator[str]:
    """In a sealed segment of a node that runs, and notices when somebody reads there."""
    node = scene.choose()
    shown = scene.show(node)
    disk = scene.site.disks[node.node]
    where = await asyncio.to_thread(lambda: disk.flip_bit(scene.dice, sealed=True))
    yield f"{shown} {where}"


@asynccontextmanager
async def _lose_disk(scene: Scene) -> AsyncIterator[str]:
    """A node comes back with an empty folder."""
    node = scene.choose()
    shown = scene.show(node)
    node.kill()
    await asyncio.to_thread(scene.site.disks[node.node].lose)
    yield shown
    node.start()


# Members


@asynccontextmanager
async def _move(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    shown = scene.show(node)
    await _operate(scene, "move", node.node)
    yield shown


@asynccontextmanager
async def _drain(scene: Scene) -> AsyncIterator[str]:
    node = scene.choose()
    shown = scene.show(node)
    await _operate(scene, "drain", node.node)
    yield shown
    await _operate(scene, "join", node.node)


@asynccontextmanager
async def _replace(scene: Scene) -> AsyncIterator[str]:
    """A node leaves for good; one with the same id and an empty disk joins."""
    node = scene.choose()
    shown = scene.show(node)
    await _operate(scene, "leave", node.node)
    code = await asyncio.to_thread(node.stop)
    assert code == 0, f"{node.node} has left and ended with {code}"
    await asyncio.to_thread(scene.site.disks[node.node].lose)
    yield shown
    node.start()
    # Until it has started, nobody knows of it.
    await _operate(scene, "join", node.node, patience=Patience(PATIENCE_SECONDS))


async def _operate(scene: Scene, *words: str, patience: Patience | None = None) -> None:
    where = ("--cluster", CLUSTER, "--etcd", ",".join(scene.site.etcd.urls))
    while True:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fanlog", "cluster", *words, *where),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode == 0:
            return
        if patience is None or patience.is_over:
            raise AssertionError(f"fanlog cluster {' '.join(words)}: {said.decode()}")


# etcd


@asynccontextmanager
async def _kill_etcd(scene: Scene) -> AsyncIterator[str]:
    async with _without_members(scene, 1) as shown:
        yield shown


@asynccontextmanager
async def _kill_etcd_majority(scene: Scene) -> AsyncIterator[str]:
    async with _without_members(scene, 2) as shown:
        yield shown


@asynccontextmanager
async def _without_members(scene: Scene, count: int) -> AsyncIterator[str]:
    etcd = scene.site.etcd
    members = scene.dice.sample(etcd.members, min(count, len(etcd.members)))
    for member in members:
        member.kill()
    yield ", ".join(member.name for member in members)
    for member in members:
        member.start(etcd.cluster, "existing")
    await asyncio.to_thread(etcd.leader)


class Fault(NamedTuple):
    name: str
    run: Run
    alone: bool = False
    # It needs hosts and disks of their own.
    namespaces: bool = True


FAULTS = (
    Fault("kill", _kill, namespaces=False),
    Fault("pause", _pause, namespaces=False),
    Fault("stop", _stop, alone=True, namespaces=False),
    Fault("move", _move, alone=True, namespaces=False),
    Fault("drain, join", _drain, alone=True, namespaces=False),
    Fault("kill etcd", _kill_etcd, namespaces=False),
    Fault("kill most of etcd", _kill_etcd_majority, alone=True),
    Fault("isolate", _isolate),
    Fault("vanish", _vanish),
    Fault("hears nothing", _deafen),
    Fault("is not heard", _mute),
    Fault("split two", _split_two),
    Fault("no etcd", _hide_etcd),
    Fault("slow link", _slow_link),
    Fault("lossy link", _lossy_link),
    Fault("full disk", _fill_disk),
    Fault("clock jumps", _jump_clock),
    Fault("bit flips", _flip_bit, alone=True),
    Fault("bit rots", _rot, alone=True),
    Fault("lost disk", _lose_disk, alone=True),
    Fault("leave, join", _replace, alone=True),
)


def possible(site: Site) -> list[Fault]:
    """Those that can be had here."""
    found = [fault for fault in FAULTS if site.hosts or not fault.namespaces]
    return [fault for fault in found if find_library() or fault.run is not _jump_clock]
