"""The clocks of a machine. Each machine has its own: one that is wrong, or that somebody sets."""

from __future__ import annotations

from tests.simulation.world import EPOCH_SECONDS, World


class Clock:
    """The monotonic clock runs with the world. The wall clock is that, plus what it was set to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.wall_offset = EPOCH_SECONDS

    def monotonic(self) -> float:
        return self._world.now

    def wall(self) -> float:
        return self._world.now + self.wall_offset

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.wall_offset += seconds
