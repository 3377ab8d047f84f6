"""Topics with many partitions on a stage where slices are small."""

from __future__ import annotations

import pytest

from fanlog.broker.slices import SLICE_US
from fanlog.log.store import StoredTopic
from tests.broker.stage import HandRuntime, Stage

PARTITIONS = 60
A_STEP = 4
STEPS_A_SLICE = 2
A_TURN = A_STEP * STEPS_A_SLICE


def shorten_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a part of a slice later."""

    def work_us(runtime: HandRuntime) -> int:
        runtime.time_us += SLICE_US // STEPS_A_SLICE
        return runtime.monotonic_us()

    monkeypatch.setattr(HandRuntime, "work_us", work_us)


def filled(on: Stage, name: str = "t", *, partitions: int = PARTITIONS) -> StoredTopic:
    """A topic with a message in each of many partitions."""
    on.core.create_topic(name, {"partitions": partitions})
    for partition in range(partitions):
        on.publish(name, [b"%d" % partition], partition=partition)
    on.run()
    return on.core.catalog.get(name).stored
