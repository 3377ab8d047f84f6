"""Delayed messages against a simple model: what is scheduled, replaced, cancelled and due, over
restarts and with a wall clock that somebody sets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.schedule.scheduling import SECOND_US, arrived, cancel, later, tick
from tests.broker.stage import BEGIN_US, Stage, stage
from tests.broker.transactions.staging import settle

IDS = st.sampled_from(["a", "b", "c"])
SECONDS = st.integers(0, 5)
COMMON = (
    st.tuples(st.just("cancel"), IDS, st.just(0)),
    st.tuples(st.just("wait"), st.just(""), SECONDS),
    st.tuples(st.just("restart"), st.just(""), SECONDS),
)
AT = st.tuples(st.just("at"), IDS, SECONDS)
DELAY = st.tuples(st.just("delay"), IDS, SECONDS)
SET_CLOCK = st.tuples(st.just("clock"), st.just(""), st.integers(-20, 20))
Step = tuple[str, str, int]


class Model:
    """By id: the value that waits, and when it is due. `offset_us` is how far the wall clock is
    off."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[bytes, int]] = {}
        self.arrived: list[bytes] = []
        self.wall_us = BEGIN_US

    def fall_due(self) -> None:
        due = [id for id, (_, due_us) in self.waiting.items() if due_us <= self.wall_us]
        self.arrived += [self.waiting.pop(id)[0] for id in due]


class Broker:
    """A broker that is restarted, with the clocks that it had."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._shift_us = 0
        self.on = self._start(BEGIN_US)

    def _start(self, time_us: int) -> Stage:
        on = self._open.enter_context(stage(self._folder, time_us=time_us))
        on.runtime.wall_shift_us = self._shift_us
        settle(on)
        return on

    def restart(self, seconds: int) -> None:
        time_us = self.on.runtime.time_us + seconds * SECOND_US
        self._open.close()
        self.on = self._start(time_us)

    def set_clock(self, seconds: int) -> None:
        self._shift_us += seconds * SECOND_US
        self.on.runtime.wall_shift_us = self._shift_us

    def close(self) -> None:
        self._open.close()


def play(steps: list[Step], folder: Path | None) -> Iterator[tuple[Model, Stage]]:
    model, broker = Model(), Broker(folder)
    try:
        for number, (step, id, amount) in enumerate(steps):
            on, value = broker.on, b"%d" % number
            if step == "at":
                due_us = model.wall_us + amount * SECOND_US
                later(on, id, value, due_us)
                model.waiting[id] = (value, due_us)
            elif step == "delay":
                later(on, id, value, -max(1, amount * SECOND_US))
                model.waiting[id] = (value, model.wall_us + max(1, amount * SECOND_US))
            elif step == "cancel":
                answers = cancel(on, id)
                settle(on)
                assert answers == [model.waiting.pop(id, None) is not None]
            elif step == "clock":
                broker.set_clock(amount)
                model.wall_us += amount * SECOND_US
            else:
                model.wall_us += amount * SECOND_US
                if step == "restart" and folder is not None:
                    broker.restart(amount)
                else:
                    on.runtime.time_us += amount * SECOND_US
            settle(broker.on)
            tick(broker.on)
            model.fall_due()
            yield model, broker.on
        # In the end nothing is left behind.
        broker.on.runtime.time_us += 100 * SECOND_US
        model.wall_us += 100 * SECOND_US
        tick(broker.on)
        model.fall_due()
        yield model, broker.on
    finally:
        broker.close()


def check(steps: list[Step], folder: Path | None) -> None:
    for model, on in play(steps, folder):
        assert sorted(arrived(on)) == sorted(model.arrived)
        assert len(on.core.schedule) == len(model.waiting)
        schedule = on.core.schedule
        assert len(schedule.pending.calendar) + len(schedule.pending.delays) == len(schedule)


@settings(max_examples=60)
@given(st.lists(st.one_of(AT, DELAY, *COMMON), max_size=25))
def test_messages_come_when_they_are_due_and_once(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(steps, Path(folder) / "data")


@settings(max_examples=60)
@given(st.lists(st.one_of(AT, SET_CLOCK, *COMMON), max_size=25))
def test_a_time_is_a_time_of_the_wall_clock_whoever_sets_it(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(steps, Path(folder) / "data")


@settings(max_examples=60)
@given(st.lists(st.one_of(AT, DELAY, *COMMON), max_size=25))
def test_a_broker_in_memory_does_the_same(steps: list[Step]) -> None:
    check(steps, None)
