"""Offset commits that a cut holds up until their partition was another's. The simulation found that
they were sent again, and counted: positions went back, and transactions were stored twice."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import fanlog
from fanlog.config import Config, ListenerOptions
from tests.simulation.actors import connecting
from tests.simulation.broker import SimulatedBroker
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.substitutes import simulated
from tests.simulation.world import World

_SESSION_SECONDS = 0.5
_LIMIT_SECONDS = 120.0
Commit = Callable[[fanlog.Client, Any, fanlog.Message], Coroutine[Any, Any, None]]


class Scene:
    """A broker with five messages, a member that reads them and is cut off before it commits, and
    one that does those and five more meanwhile."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = Network(world)
        config = Config(listener=ListenerOptions(idle_timeout_seconds=2.0))
        self.broker = SimulatedBroker(Machine(world, self.network, "broker"), config)
        self.outcome: BaseException | None = None

    def member(self, client: fanlog.Client) -> Any:
        return client.consume(
            "t",
            group="g",
            reset="earliest",
            commit="manual",
            session_seconds=_SESSION_SECONDS,
        )

    def run(self, name: str, work: Callable[[fanlog.Client], Coroutine[Any, Any, None]]) -> Any:
        async def connected() -> None:
            async with connecting(self.broker.url) as client:
                await work(client)

        return Machine(self.world, self.network, name).start_process(name).spawn(connected())

    async def prepare(self, client: fanlog.Client) -> None:
        await client.create_topic("t", durability="fsync")
        for number in range(5):
            await client.publish("t", b"%d" % number)

    async def take_over(self, client: fanlog.Client) -> None:
        for number in range(5, 10):
            await client.publish("t", b"%d" % number)
        async with self.member(client) as member:
            for _ in range(10):
                message = await member.next(60)
            await member.commit(message)

    def cut_off(self, commit: Commit) -> Any:
        async def work(client: fanlog.Client) -> None:
            async with self.member(client) as member:
                for _ in range(5):
                    message = await member.next(60)
                self.network.block("old", "broker")
                self.network.block("broker", "old")
                try:
                    await commit(client, member, message)
                except fanlog.errors.FencedError as fenced:
                    self.outcome = fenced

        return self.run("old", work)


async def commit_alone(client: fanlog.Client, member: Any, message: fanlog.Message) -> None:
    await member.commit(message)


@pytest.mark.parametrize("commit", [commit_alone])
def test_a_commit_that_a_cut_held_up_is_not_sent_again_for_a_lost_partition(
    commit: Commit,
) -> None:
    world = World(1)
    with simulated(world):
        scene = Scene(world)
        scene.broker.start()
        world.run(scene.run("publisher", scene.prepare).done, _LIMIT_SECONDS)
        old = scene.cut_off(commit)
        world.run(lambda: world.now > 5.0, _LIMIT_SECONDS)
        new = scene.run("new", scene.take_over)
        world.run(new.done, _LIMIT_SECONDS)
        new.result()
        scene.network.unblock_all()
        world.run(old.done, _LIMIT_SECONDS)
        old.result()
        positions: list[int | None] = []

        async def look(client: fanlog.Client) -> None:
            found = await client.groups.describe("g")
            positions.extend(partition.committed for partition in found.partitions)

        world.run(scene.run("operator", look).done, _LIMIT_SECONDS)
        world.close()
    assert positions == [10]
    assert isinstance(scene.outcome, fanlog.errors.FencedError)
