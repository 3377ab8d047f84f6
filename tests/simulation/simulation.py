"""One run: brokers, a network, workloads and faults, from one seed; then the checks.

The stages: topics are made, everybody works while things go wrong, all is healed, everybody ends
what was begun, and the promises are checked; then once more after a last power cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import fanlog
from fanlog.config import BrokerOptions, Config, ListenerOptions, LogOptions
from fanlog.model import KIB
from tests.simulation.actors import Actor, connecting
from tests.simulation.broker import SimulatedBroker
from tests.simulation.faults import Faults
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.substitutes import simulated
from tests.simulation.workload import Intended, Violation, Workload
from tests.simulation.workloads import ALL
from tests.simulation.world import Killed, Stuck, World

# Simulated seconds: for the topics, for the end of what was begun, and for the checks.
_PREPARE_SECONDS = 60.0
_FINISH_SECONDS = 300.0
_CHECK_SECONDS = 300.0
_WORK_SECONDS = (1.0, 3.0, 6.0)

Plant = Callable[[], AbstractContextManager[object]]


@dataclass(slots=True, frozen=True)
class Result:
    """What came of a run. `failure` is empty if every promise was kept."""

    seed: int
    failure: str
    digest: str
    events: int
    seconds: float
    starts: int
    acknowledged: dict[str, int]


class _Faulty(logging.Handler):
    """Collects what Fanlog logs, and takes a traceback for a failure of the run: it is a fault
    of the broker's or the client's own."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.WARNING)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        simulation = self._simulation
        line = f"{simulation.world.now:.6f} {record.levelname} {record.getMessage()}"
        simulation.logged.append(line)
        if record.exc_info and not isinstance(record.exc_info[1], Killed | Intended):
            text = logging.Formatter().formatException(record.exc_info)
            simulation.violations.append(f"logged with a traceback: {line}\n{text}")


class Simulation:
    """`kinds` are the workloads; without them the seed chooses. `plant` makes a mistake in Fanlog
    for the time of the run."""

    # What a seed chooses from.
    all: Sequence[type[Workload]] = ALL
    # Errors after which a client program is started again.
    forgiven: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        seed: int,
        kinds: Sequence[type[Workload]] = (),
        *,
        plant: Plant = nullcontext,
        keep_all: bool = False,
    ) -> None:
        self.world = World(seed, keep_all=keep_all)
        self.network = Network(self.world)
        self.brokers: list[SimulatedBroker] = []
        self.actors: list[Actor] = []
        self.violations: list[str] = []
        self.logged: list[str] = []
        self.over = False
        self.workloads: list[Workload] = []
        self._kinds = kinds
        self._plant = plant
        self._operator = Machine(self.world, self.network, "operator")

    @property
    def url(self) -> str:
        return self.brokers[0].url

    def run(self) -> Result:
        failure = ""
        logger = logging.getLogger("fanlog")
        handler, propagate, level = _Faulty(self), logger.propagate, logger.level
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
        try:
            with simulated(self.world), self._plant():
                try:
                    self._run()
                finally:
                    self.world.close()
        except (Violation, Stuck, Exception) as fault:  # noqa: BLE001 - whatever it is, it is the result
            failure = _describe(fault)
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)
        return Result(
            self.world.seed,
            "\n".join([*self.violations[:3], *([failure] if failure else [])]),
            self.world.trace.digest(),
            self.world.trace.count,
            self.world.now,
            sum(broker.starts for broker in self.brokers),
            {type(workload).__name__: workload.acknowledged for workload in self.workloads},
        )

    def _run(self) -> None:
        dice = self.world.dice("simulation")
        self._choose_weather()
        self._build()
        kinds = self._kinds or dice.sample(self.all, dice.randint(1, min(3, len(self.all))))
        self.workloads = [kind(self) for kind in kinds]
        for workload in self.workloads:
            self._operate(workload.prepare, _PREPARE_SECONDS)
        faults = self._make_faults()
        for workload in self.workloads:
            workload.begin()
        faults.begin()
        end = self.world.now + dice.choice(_WORK_SECONDS)
        self.world.run(lambda: self.world.now >= end or bool(self.violations), _FINISH_SECONDS)
        faults.end()
        self._end_with_disaster()
        self.over = True
        self._finish()
        self._look_for_faults()

    def _build(self) -> None:
        """Makes the brokers, and starts them."""
        broker = SimulatedBroker(Machine(self.world, self.network, "broker"), self._config())
        self.brokers.append(broker)
        broker.start()

    def _end_with_disaster(self) -> None:
        """The last and worst fault, while everybody still works."""

    def _make_faults(self) -> Faults:
        return Faults(self)

    def _finish(self) -> None:
        """Everything is healed: what was begun ends, and promises are checked."""
        self._end_work()
        broker = self.brokers[0]
        broker.cut_power("drop", 0)
        broker.start()
        self._check()

    def _end_work(self) -> None:
        self.world.run(self._all_done, _FINISH_SECONDS)
        for actor in self.actors:
            actor.result()
        for workload in self.workloads:
            self._operate(workload.settle, _CHECK_SECONDS)
            self._operate(workload.check, _CHECK_SECONDS)

    def _check(self) -> None:
        for workload in self.workloads:
            self._operate(workload.check, _CHECK_SECONDS)

    def _choose_weather(self) -> None:
        dice, weather = self.world.dice("weather"), self.network.weather
        weather.delay_max = dice.choice((0.000_2, 0.002, 0.02))
        weather.slow_share = dice.choice((0.0, 0.02, 0.1))
        weather.slow_seconds = dice.choice((0.05, 0.3))
        weather.split_share = dice.choice((0.0, 0.2, 0.8))
        weather.buffer_bytes = dice.choice((4 * KIB, 256 * KIB))

    def _config(self, host: str = "broker") -> Config:
        dice = self.world.dice("config")
        return Config(
            listener=ListenerOptions(host=host, idle_timeout_seconds=5.0),
            # Below what people may choose, so that files are switched in a short run.
            log=LogOptions(
                journal_bytes=dice.choice((16, 64, 1024)) * KIB,
                segment_first_bytes=4 * KIB,
                reserve_bytes=0,
                retention_check_seconds=dice.choice((0.2, 0.5, 2.0)),
                compaction_keys_max=dice.choice((2, 500_000)),
            ),
            broker=BrokerOptions(
                auto_create_topics=False,
                transaction_memory_bytes=dice.choice((1, 64)) * KIB,
                revoke_seconds=2.0,
                group_grace_seconds=0.5,
            ),
        )

    def _all_done(self) -> bool:
        return bool(self.violations) or all(actor.done for actor in self.actors)

    def _operate(self, work: Callable[[fanlog.Client], Any], seconds_max: float) -> None:
        """Runs a step with a client of its own."""
        if self.violations:
            raise Violation("see above")
        process = self._operator.start_process("operator")

        async def connected() -> None:
            async with connecting(self.url) as client:
                await work(client)

        task = process.spawn(connected())
        self.world.run(lambda: task.done() or bool(self.violations), seconds_max)
        if task.done():
            task.result()
        process.kill()

    def _look_for_faults(self) -> None:
        """What went wrong where nobody looked."""
        for process in self.world.processes:
            for context in process.loop.faults:
                fault = context.get("exception")
                self.violations.append(
                    f"{process.name}: {context.get('message')}: {_describe(fault)}"
                )
            for task in process.tasks:
                if process.alive and _is_unseen(task):
                    fault = task.exception()
                    self.violations.append(f"{process.name}: a task failed: {_describe(fault)}")


def _is_unseen(task: asyncio.Task[Any]) -> bool:
    return task.done() and bool(getattr(task, "_log_traceback", False))


def _describe(fault: BaseException | None) -> str:
    if fault is None:
        return ""
    return logging.Formatter().formatException((type(fault), fault, fault.__traceback__))
