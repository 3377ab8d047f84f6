"""What logins, metrics, the audit log, traces, limits and open dashboards cost: one broker with all
of them beside one with none, at full speed.

Law: both brokers run at the same time on the same core, and are measured in short slices in turn,
so that whatever else the machine does concerns both. A slice ends when every byte has arrived, so
that neither works during the other's. Each pair of slices makes a ratio, and the median counts.
Two equal brokers differ by a few percent for as long as they run, by where their memory came to
lie. So both are started several times, and neither always first.
Both have the same listeners, so that what is measured is the features and nothing else.
What happens once a second (a scrape, a bounded number of traces, what dashboards ask) happens once
for each second that the broker was on its core: on a busy machine that is longer, and its share of
the work the same.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fanlog.bench.acked import acked_load
from fanlog.bench.dashboards import Dashboards, dashboards, furnish
from fanlog.bench.results import OverheadReport, OverheadRow
from fanlog.bench.runner import (
    BenchProgress,
    LoadProcess,
    RunOptions,
    environment_of,
    load_process,
    silent,
)
from fanlog.bench.sampled_load import FrameMarker, MarkedAcked, MarkedFanout
from fanlog.bench.systems import (
    HOST,
    BenchError,
    Cores,
    SystemSpec,
    choose_cores,
    free_port,
    on_core_ns,
    started,
)
from fanlog.bench.wires.fanlog import FanlogFanout, FanlogTopic
from fanlog.config_security import TelemetryOptions
from fanlog.errors import InvalidArgumentError
from fanlog.security.keys import make_key

Feature = Literal["auth", "metrics", "audit", "tracing", "limits"]
FEATURES: tuple[Feature, ...] = ("auth", "metrics", "audit", "tracing")
# Features that are measured only on request.
OTHER_FEATURES: tuple[Feature, ...] = ("limits",)
# Two equal brokers: how far a ratio is from 1 then, that much is noise.
NO_FEATURES = "none"
# Limits of users, topics and prefixes that are counted, and never reached.
_LIMITS = """\
[limits]
messages_per_second = 1000000000000
bytes_per_second = 1000000000000000
connections_per_address = 1000000
prefixes = "b:stored_bytes=1000000000000000"
[topic]
messages_per_second_max = 1000000000000
bytes_per_second_max = 1000000000000000
"""
WARMUP_SLICES = 2
STARTS = 4
SCRAPE_TIMEOUT_S = 20.0
SCRAPE_EVERY_S = 1.0


def features_named(text: str) -> tuple[Feature, ...]:
    """The features in a list with commas.

    >>> features_named("auth,tracing"), features_named("none")
    (('auth', 'tracing'), ())
    """
    if text == NO_FEATURES:
        return ()
    features = (*FEATURES, *OTHER_FEATURES)
    known: dict[str, Feature] = {feature: feature for feature in features}
    try:
        return tuple(known[name.strip()] for name in text.split(","))
    except KeyError as unknown:
        raise InvalidArgumentError(
            f"There is no feature {unknown}. Choose from {', '.join(features)}. "
            f"Or give {NO_FEATURES} alone: then both brokers have none."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadOptions(RunOptions):
    """`features` are what the second broker has. It is scraped once a second, and `sampled` of its
    messages belong to a trace. So many `dashboards` are open on it. `subscribers` are those of the
    fan-out; 0 is a publisher that waits for acknowledgements, and no subscriber."""

    features: tuple[Feature, ...] = FEATURES
    subscribers: tuple[int, ...] = (0, 1, 100)
    batches: tuple[int, ...] = (64, 1)
    payload_bytes: int = 128
    window_messages: int = 8192
    sampled: float = 0.01
    rounds: int = 16
    slice_s: float = 0.5
    dashboards: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape of load."""

    subscribers: int
    batch: int

    @property
    def label(self) -> str:
        """For the progress bar."""
        to = f"{self.subscribers} subscribers" if self.subscribers else "acknowledged"
        return f"{to}, {self.batch} a batch"


@dataclass(frozen=True, slots=True)
class Side:
    """A broker as the load sees it. `scraped` is the port of its web listener, or 0. `web` is the
    same port, for `dashboards`."""

    port: int
    pid: int
    key: str = ""
    scraped: int = 0
    sampled: float = 0.0
    web: int = 0
    dashboards: int = 0


@dataclass(frozen=True, slots=True)
class SlicePairs:
    """Messages a second in each slice, without and with the features; what a message cost each
    broker, in nanoseconds on its core; sampled ones a second."""

    without: list[float]
    having: list[float]
    cost_ns: tuple[float, float]
    sampled_per_s: float


def run_overhead(options: OverheadOptions, progress: BenchProgress = silent) -> OverheadReport:
    """Measure every cell and report a row for each.

    >>> run_overhead(OverheadOptions(subscribers=(10,), rounds=3))  # doctest: +SKIP
    """
    cores = choose_cores(options.pin)
    environment = environment_of(options, (), pinned=cores.pinned)
    cells = [Cell(s, batch) for s in options.subscribers for batch in options.batches]
    rows: list[OverheadRow] = []
    with load_process(cores.load) as load:
        for done, cell in enumerate(cells):
            progress(done, len(cells), cell.label)
            rows.append(_row(cell, _measure(cell, options, cores, load), options))
    progress(len(cells), len(cells), "done")
    return OverheadReport(rows=rows, left_out=[], environment=environment)


def _measure(
    cell: Cell, options: OverheadOptions, cores: Cores, load: LoadProcess
) -> list[SlicePairs]:
    starts = min(STARTS, options.rounds)
    found: list[SlicePairs] = []
    for number in range(starts):
        # The rounds that are left, over the starts that are left.
        done = sum(len(pairs.having) for pairs in found)
        rounds = -(-(options.rounds - done) // (starts - number))
        with _brokers(options, cores, plain_first=number % 2 == 0) as sides:
            found.append(load.call(generate, cell, options, rounds, *sides))
    return found


@contextlib.contextmanager
def _brokers(
    options: OverheadOptions, cores: Cores, *, plain_first: bool
) -> Generator[tuple[Side, Side]]:
    """The broker without the features, and the one that has them."""
    having = options.features
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
        ports = free_port(), free_port()
        plain = _serving(ports[0], '[audit]\nlevel = "off"\n')
        key = make_key() if "auth" in having else ""
        lines = ["[audit]", f'level = "{"changes" if "audit" in having else "off"}"']
        if key:
            file = Path(folder) / "key"
            file.touch(0o600)
            file.write_text(key + "\n")
            lines += ["[security]", "auth = true", f'admin_key_file = "{file}"']
        if "limits" in having:
            lines.append(_LIMITS)
        spec = _serving(ports[1], "\n".join(lines) + "\n")
        order = (plain, spec) if plain_first else (spec, plain)
        running = {
            one: stack.enter_context(started(one, cores.system, options.directory)) for one in order
        }
        off, on = running[plain], running[spec]
        scraped = on.port if "metrics" in having else 0
        sampled = options.sampled if "tracing" in having else 0.0
        side = Side(ports[1], on.pid, key, scraped, sampled, on.port, options.dashboards)
        if options.dashboards:
            # On both, so that only the dashboards make a difference.
            furnish(ports[0])
            furnish(ports[1], key)
        yield Side(ports[0], off.pid), side


def _serving(port: int, config: str) -> SystemSpec:
    return SystemSpec("fanlog", listener="websocket", native_port=port, config=config)


def generate(
    cell: Cell, options: OverheadOptions, rounds: int, without: Side, having: Side
) -> SlicePairs:
    """What the load process does for one cell and one start of the brokers."""
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_running(cell, options, side)) for side in (without, having)]
        for run in runs * WARMUP_SLICES:
            run.slice(options.slice_s)
        for run in runs:
            run.begin()
        for number in range(rounds):
            # Nobody always comes after the other.
            for run in runs if number % 2 else reversed(runs):
                run.slice(options.slice_s)
        costs = [run.used_ns / max(1, run.messages) for run in runs]
        return SlicePairs(
            runs[0].rates, runs[1].rates, (costs[0], costs[1]), runs[1].sampled_per_s()
        )


class _OverheadRun:
    """A load on one broker, and who scrapes that."""

    def __init__(
        self,
        load: MarkedFanout | MarkedAcked,
        batch: int,
        side: Side,
        opened: Dashboards | None = None,
    ) -> None:
        self._load = load
        self._dashboards = opened
        self._batch = batch
        self._side = side
        # On its core, in the last slice and since the last scrape.
        self._busy_s = 0.0
        self._unscraped_s = SCRAPE_EVERY_S
        self.rates: list[float] = []
        self.messages = 0
        self.used_ns = 0
        self._web = http.client.HTTPConnection(HOST, side.scraped, timeout=SCRAPE_TIMEOUT_S)

    def slice(self, slice_s: float) -> None:
        """Measures for a moment."""
        before, used_ns = self._units(), on_core_ns(self._side.pid)
        sampler = self._load.sampler
        if sampler is not None:
            most = round(TelemetryOptions().traced_per_second_max * self._busy_s)
            sampler.refill(most, slice_s)
        scrapes = self._side.scraped and self._unscraped_s >= SCRAPE_EVERY_S
        if scrapes:
            self._unscraped_s -= SCRAPE_EVERY_S
            # The broker answers while it is measured; the answer is read when that is over.
            headers = {"Authorization": f"Bearer {self._side.key}"} if self._side.key else {}
            self._web.request("GET", "/metrics", headers=headers)
        if self._dashboards is not None:
            self._dashboards.ask(self._busy_s)
        took_s = self._load.slice(slice_s)
        if self._dashboards is not None:
            self._dashboards.read()
        if scrapes:
            answer = self._web.getresponse()
            body = answer.read()
            if answer.status != 200 or b"fanlog_published_messages" not in body:
                raise BenchError(f"/metrics answered {answer.status}: {body[:200]!r}")
        messages = (self._units() - before) * self._batch
        used_ns = on_core_ns(self._side.pid) - used_ns
        self._busy_s = used_ns / 1e9
        self._unscraped_s += self._busy_s
        self.used_ns += used_ns
        self.messages += messages
        self.rates.append(messages / took_s)

    def _units(self) -> int:
        load = self._load
        return load.acknowledged_units if isinstance(load, MarkedAcked) else load.published_units()

    def begin(self) -> None:
        """What was measured so far was the warm-up."""
        self.rates.clear()
        self.messages = self.used_ns = 0
        if self._load.sampler is not None:
            self._load.sampler.sampled = 0

    def sampled_per_s(self) -> float:
        """For each second on its core."""
        sampler = self._load.sampler
        return 0.0 if sampler is None else sampler.sampled * 1e9 / max(1, self.used_ns)

    def close(self) -> None:
        self._web.close()


@contextlib.contextmanager
def _running(cell: Cell, options: OverheadOptions, side: Side) -> Generator[_OverheadRun]:
    payload = b"x" * options.payload_bytes
    sampler = None
    if side.sampled:
        sampler = FrameMarker(side.sampled, cell.batch)
    with contextlib.ExitStack() as stack:
        if cell.subscribers:
            wire = FanlogFanout(payload, cell.batch, key=side.key)
            fanout = MarkedFanout(wire, side.port, cell.subscribers, options.window_messages)
            stack.callback(fanout.close)
            fanout.sampler = sampler
            load: MarkedFanout | MarkedAcked = fanout
        else:
            topic = FanlogTopic(payload, cell.batch, "memory", 1, key=side.key)
            acked = stack.enter_context(acked_load(topic, side.port, options.window_messages))
            load = MarkedAcked.of(acked, sampler)
        opened = None
        if side.dashboards:
            opened = stack.enter_context(dashboards(side.web, side.key, side.dashboards))
        run = _OverheadRun(load, cell.batch, side, opened)
        stack.callback(run.close)
        yield run


def _features(options: OverheadOptions) -> list[str]:
    opened = [f"{options.dashboards} dashboards"] if options.dashboards else []
    return [*options.features, *opened]


def _row(cell: Cell, found: list[SlicePairs], options: OverheadOptions) -> OverheadRow:
    without = [rate for pairs in found for rate in pairs.without]
    having = [rate for pairs in found for rate in pairs.having]
    ratios = [on / off for off, on in zip(without, having, strict=True)]
    readers = cell.subscribers or 1
    costs = [statistics.fmean(pairs.cost_ns[side] for pairs in found) for side in (0, 1)]
    return OverheadRow(
        features=_features(options),
        subscribers=cell.subscribers,
        batch=cell.batch,
        payload=options.payload_bytes,
        off_per_s=round(statistics.median(without) * readers, 1),
        on_per_s=round(statistics.median(having) * readers, 1),
        off_ns=round(costs[0], 1),
        on_ns=round(costs[1], 1),
        sampled_per_s=round(statistics.fmean(pairs.sampled_per_s for pairs in found), 1),
        ratio=round(statistics.median(ratios), 4),
        ratios=[round(ratio, 4) for ratio in ratios],
    )
