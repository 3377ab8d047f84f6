"""The simulated network loses what a real one may lose, and nothing else."""

from __future__ import annotations

import pytest

from tests.simulation.machine import Machine
from tests.simulation.network import Network, Stream
from tests.simulation.world import World


def connected() -> tuple[World, Network, Stream, Stream]:
    world = World(1)
    network = Network(world)
    near, far = (
        Stream(network, Machine(world, network, name).start_process(name), name, ("", 0))
        for name in ("near", "far")
    )
    near.peer, far.peer = far, near
    return world, network, near, far


def test_what_is_sent_arrives_in_order() -> None:
    world, _, near, far = connected()
    for data in (b"one ", b"two ", b"three"):
        near.send(data)
    world.run(lambda: len(far._inbox) == 13, 10.0)
    assert far.recv(100) == b"one two three"


def test_nothing_arrives_behind_what_a_cut_has_lost() -> None:
    world, network, near, far = connected()
    near.send(b"lost")
    network.cut(near)
    # The sender has not heard of it yet.
    near.send(b"late")
    world.run(lambda: near.readable() and far.readable(), 10.0)
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            end.recv(100)
