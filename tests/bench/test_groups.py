"""Exactly-once publishing, groups and queues: the whole benchmark, small, and what it stands on."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import fanlog
from fanlog.bench import BenchError, GroupsOptions, run_groups
from fanlog.bench.acked import acked_load, measure_in_turn
from fanlog.bench.crew import CrewTask, RoleResult, StartSignal, crew_of
from fanlog.bench.exactly_once import (
    PRODUCER_ID,
    TRANSACTION_MESSAGES,
    PublishingLoad,
    measure_clients,
)
from fanlog.bench.group_roles import WorkerLoad, url_of, work_fanlog
from fanlog.bench.groups import ACKING, fill
from fanlog.bench.results import GroupsRow
from fanlog.bench.systems import SystemSpec, started
from fanlog.bench.tables import ratio_beside
from fanlog.bench.wires import make_payload
from fanlog.bench.wires.fanlog import NAME, FanlogProducer
from fanlog.format.header import read_header
from tests.bench.programs import need
from tests.bench.test_scale import check_shape


@pytest.mark.timeout(400)
def test_every_part_is_measured_and_every_job_counted(tmp_path: Path) -> None:
    need("nats")
    steps: list[tuple[int, int, str]] = []
    options = GroupsOptions(
        systems=("fanlog", "redis", "nats"),
        batches=(1, 64),
        messages=2000,
        backlog=200_000,
        iterated=1000,
        readers=2,
        workers=(2,),
        prefetch=100,
        nats_jobs=30_000,
        warmup_s=0.02,
        run_s=0.05,
        repeat=1,
        directory=tmp_path,
    )
    report = run_groups(options, lambda done, total, label: steps.append((done, total, label)))
    assert steps[0] == (0, 12, "publishing, 1 a batch")
    assert steps[-1] == (12, 12, "done")
    rows = {(row.part, row.how): row for row in report.rows}
    assert len([row for row in report.rows if row.part == "publishing"]) == 7
    assert [row.how for row in report.rows if row.part == "reading"] == [
        "plain readers, batches",
        "a group, batches",
        "plain readers, messages",
        "a group, messages",
    ]
    assert [row.how for row in report.rows if row.part == "acking"] == [
        how for _, how in ACKING.values()
    ]
    assert all(row.messages_per_s > 0 and len(row.runs) == 1 for row in report.rows)
    once = rows["publishing", "wire, 64 a batch, exactly once"]
    assert once.beside == "wire, 64 a batch, plain"
    assert ratio_beside(report.rows, once) is not None
    assert report.left_out == []
    check_shape(report, tmp_path, "Exactly-once publishing", "a group, batches", "msg.ack_sync()")


async def test_a_queue_that_runs_dry_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanlog.bench.group_roles.DRY_TIMEOUT_S", 0.2)
    with started(SystemSpec("fanlog"), None) as system:
        fill("fanlog", GroupsOptions(backlog=640, readers=1), system.port)
        await work_all_off(system.port, "dry", 640)
        given = WorkerLoad(
            port=system.port,
            topic=NAME,
            queue="dry",
            acking="batch.ack",
            prefetch=100,
            seconds=0.1,
        )
        with pytest.raises(BenchError, match="choose more messages, or fewer seconds"):
            await work_fanlog(given, at_once)


async def work_all_off(port: int, queue: str, jobs: int) -> None:
    """However long it takes: what is dry then is so for certain."""
    async with (
        fanlog.connect(url_of(port)) as client,
        client.work(NAME, queue=queue, reset="earliest") as worker,
    ):
        async for batch in worker.batches():
            await batch.ack()
            jobs -= len(batch)
            if not jobs:
                return


async def at_once() -> None:
    """Nobody to wait for."""


def test_batches_are_numbered_anew_in_each_lap() -> None:
    wire = FanlogProducer(make_payload(128), 3, "os", PRODUCER_ID)
    (unit,) = wire.cycle()
    block = memoryview(bytearray(unit * 4))
    wire.renumber(block, 8)
    headers = [read_header(block, at) for at in range(0, len(block), len(unit))]
    assert [header.first_sequence for header in headers] == [24, 27, 30, 33]
    assert {header.producer_id for header in headers} == {PRODUCER_ID}


@pytest.mark.parametrize("batch", [1, 16])
def test_a_numbered_producer_stores_each_batch_once(batch: int) -> None:
    with started(SystemSpec("fanlog"), None) as system, contextlib.ExitStack() as stack:
        wires = [FanlogProducer(make_payload(16), batch, "os", id) for id in (0, PRODUCER_ID)]
        loads = [
            stack.enter_context(acked_load(wire, system.port, 100, wire.renumber)) for wire in wires
        ]
        # All that there is to repeat was sent, and then some more.
        for load in loads:
            while load.sent_bytes <= len(load.block):
                load.slice(0.05)
        assert all(rate > 0 for rate in measure_in_turn(loads, 0.02, 0.1))


def test_a_producer_that_repeats_its_numbers_is_found_out() -> None:
    with started(SystemSpec("fanlog"), None) as system:
        wire = FanlogProducer(make_payload(16), 4, "os", PRODUCER_ID)
        with (
            acked_load(wire, system.port, 100, lambda block, _: wire.renumber(block, 0)) as load,
            pytest.raises(BenchError, match="messages were acknowledged, but"),
        ):
            load.fill(3 * len(load.block) // load.unit_bytes, 60)


def test_clients_publish_plainly_exactly_once_and_in_transactions() -> None:
    with started(SystemSpec("fanlog"), None) as system:
        given = PublishingLoad(system.port, 16, 0.02, 0.05, 2 * TRANSACTION_MESSAGES + 1)
        rates = measure_clients(given)
    assert len(rates) == 3
    assert min(rates) > 0


@dataclass(frozen=True)
class Counting:
    """What a process counts."""

    number: int
    dry: bool = False


async def count_up(given: Counting, start: StartSignal) -> RoleResult:
    await start()
    if given.dry:
        raise BenchError("there is nothing to count")
    return RoleResult(given.number, time.perf_counter())


def test_a_crew_begins_together_adds_up_and_can_play_again() -> None:
    with crew_of(2) as crew:
        for _ in range(2):
            count, took_s = crew.play([CrewTask(count_up, Counting(number)) for number in (2, 3)])
            assert count == 5
            assert took_s > 0
        with pytest.raises(BenchError, match="nothing to count"):
            crew.play([CrewTask(count_up, Counting(1, dry=True))])


def test_a_ratio_is_of_runs_that_took_turns() -> None:
    def row(how: str, processes: int, runs: list[float], beside: str = "") -> GroupsRow:
        return GroupsRow(
            part="reading",
            system="fanlog",
            how=how,
            processes=processes,
            payload=1,
            messages_per_s=runs[0],
            runs=runs,
            beside=beside,
        )

    plain = row("plain", 4, [100.0, 10.0, 200.0])
    group = row("group", 4, [90.0, 9.5, 100.0], "plain")
    rows = [row("plain", 2, [1.0, 1.0, 1.0]), plain, group]
    assert ratio_beside(rows, group) == pytest.approx(0.9)
    assert ratio_beside(rows, plain) is None
    assert ratio_beside([group], group) is None
