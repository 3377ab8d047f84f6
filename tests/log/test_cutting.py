"""Logs that are cut while nothing uses them: what stays is as it was, and no start misses what
went, wherever the power fails meanwhile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fanlog.errors import FolderInUseError, FolderUnusableError
from fanlog.format.header import read_header
from fanlog.log import posix
from fanlog.log.cutting import CutList, cut_folder
from fanlog.log.opening import StoredTopic
from fanlog.log.partition import PartitionLog
from fanlog.log.producers import ProducerRuns
from fanlog.log.scan import Owner, check_piece
from fanlog.log.store import LogStore
from fanlog.model import KIB, TopicSettings
from tests.log.compacting import compact, put
from tests.log.pieces import OPTIONS, Sample, append, make_batch, read_batches
from tests.power.disk import Mode
from tests.simulation.machine import Machine, Trap
from tests.simulation.network import Network
from tests.simulation.substitutes import simulated
from tests.simulation.world import Killed, World

OS = TopicSettings(retention_seconds=0)
FSYNC = TopicSettings(durability="fsync", retention_seconds=0)


def open_store(folder: Path) -> LogStore:
    store = LogStore(folder, OPTIONS)
    store.open()
    return store


def fill_log(log: PartitionLog, count: int, producers: ProducerRuns) -> list[Sample]:
    """Batches of two records; each of three producers in turn. They are known, as in a broker."""
    log.keep_producers(producers.histories)
    out: list[Sample] = []
    for i in range(count):
        producer = (1 + i % 3, 0, 2 * (i // 3))
        sample = make_batch(log.end_offset, count=2, time_us=i, owner=log.owner, producer=producer)
        batches = check_piece(sample.data, sample.base, sample.next, log.owner)
        log.append_copy(sample.data, batches)
        producers.add(batches)
        out.append(sample)
    return out


def make(folder: Path, settings: TopicSettings, count: int = 60) -> list[Sample]:
    """A folder that was closed cleanly, with one topic of several segments."""
    store = open_store(folder)
    log = small_segments(store.create("t", settings))
    samples = fill_log(log, count, ProducerRuns())
    if settings.durability == "fsync":
        pieces = [(log, sample.data) for sample in samples]
        store.get_journal().make_durable(pieces, posix.sync_data)
    else:
        log.track_unsynced()
        log.sync()
    store.close(clean=True)
    return samples


def small_segments(topic: StoredTopic) -> PartitionLog:
    (log,) = topic.logs
    log.settings = msgspec.structs.replace(log.settings, segment_bytes=4 * KIB)
    return log


def producer_ends(log: PartitionLog) -> dict[int, int]:
    """The next sequence of each producer that a start has found."""
    return {run.producer_id: run.first_sequence + run.record_count for run in log.recovered}


def expected_ends(samples: list[Sample]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for sample in samples:
        header = read_header(sample.data)
        ends[header.producer_id] = header.first_sequence + header.record_count
    return ends


def check(folder: Path, samples: list[Sample], end: int) -> None:
    """Two starts find what was before the cut, and a log that can be written to."""
    stay = [sample for sample in samples if sample.next <= end]
    for attempt in range(2):
        store = open_store(folder)
        (log,) = store.topics[0].logs
        assert log.end_offset == (stay[-1].next if stay else end)
        assert list(read_batches(log, log.start_offset)) == [s.data for s in stay]
        assert log.damaged == []
        assert store.problems == []
        if not attempt:
            assert producer_ends(log) == expected_ends(stay)
        more = make_batch(log.end_offset, owner=log.owner, time_us=10**6)
        append(log, more)
        log.track_unsynced()
        log.sync()
        stay.append(more)
        store.close()


@pytest.mark.parametrize("settings", [OS, FSYNC])
@pytest.mark.parametrize("end", [120, 119, 118, 114, 60, 2, 0])
def test_a_cut_log_is_what_it_was_up_to_there(
    tmp_path: Path, settings: TopicSettings, end: int
) -> None:
    samples = make(tmp_path, settings)
    cuts = CutList({Owner(1, 0): end})
    cut_folder(str(tmp_path), cuts)
    cut_folder(str(tmp_path), cuts)
    check(tmp_path, samples, end)


@pytest.mark.parametrize("settings", [OS, FSYNC])
@pytest.mark.parametrize("start", [0, 60, 500])
def test_a_log_that_begins_anew_is_empty(
    tmp_path: Path, settings: TopicSettings, start: int
) -> None:
    make(tmp_path, settings)
    cut_folder(str(tmp_path), CutList({}, {Owner(1, 0): start}))
    store = open_store(tmp_path)
    (log,) = store.topics[0].logs
    assert (log.start_offset, log.end_offset) == (start, start)
    assert log.epochs == ()
    assert log.recovered == []
    store.close(clean=True)
    check(tmp_path, [], start)


def test_producers_whose_batches_retention_has_removed_stay_known(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    log = small_segments(store.create("t", OS))
    append(log, make_batch(0, owner=log.owner, producer=(77, 0, 0)))
    store.close()
    store = open_store(tmp_path)
    log = small_segments(store.topics[0])
    producers = ProducerRuns()
    producers.add_runs(log.recovered)
    fill_log(log, 100, producers)
    log.delete_before(120)
    store.close(clean=True)
    cut_folder(str(tmp_path), CutList({Owner(1, 0): 130}))
    store = open_store(tmp_path)
    assert producer_ends(store.topics[0].logs[0])[77] == 1
    store.close()


def test_a_compacted_log_can_be_cut(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    log = small_segments(store.create("t", OS))
    for i in range(100):
        put(log, (b"%d" % (i % 7), b"v" * 100), owner=log.owner, time_us=i)
    compact(log)
    assert log.compacted_until == 100
    before = list(read_batches(log))
    store.close(clean=True)
    cut_folder(str(tmp_path), CutList({Owner(1, 0): read_header(before[-1]).base_offset}))
    store = open_store(tmp_path)
    (log,) = store.topics[0].logs
    assert list(read_batches(log)) == before[:-1]
    store.close()


def test_a_compacted_log_is_one_after_it_was_cut_behind_its_compacted_part(tmp_path: Path) -> None:
    """The compacted file is the newest one then, and is written to as any other."""
    store = open_store(tmp_path)
    log = small_segments(store.create("t", OS))
    for i in range(100):
        put(log, (b"%d" % (i % 7), b"v" * 100), owner=log.owner, time_us=i)
    compact(log)
    put(log, (b"0", b"uncommitted"), owner=log.owner, time_us=101)
    store.close(clean=True)
    cut_folder(str(tmp_path), CutList({Owner(1, 0): 100}))
    for _ in range(2):
        store = open_store(tmp_path)
        (log,) = store.topics[0].logs
        assert (log.end_offset, log.compacted_until) == (100, 100)
        store.close()


def test_a_folder_in_use_or_with_a_journal_is_not_cut(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    log = store.create("t", FSYNC).logs[0]
    (sample,) = fill_log(log, 1, ProducerRuns())
    store.get_journal().make_durable([(log, sample.data)], posix.sync_data)
    cuts = CutList({Owner(1, 0): 0})
    with pytest.raises(FolderInUseError):
        cut_folder(str(tmp_path), cuts)
    # As a crash leaves it: the journal is not emptied.
    store.journal = None
    store.close()
    with pytest.raises(FolderUnusableError, match="not in the logs yet"):
        cut_folder(str(tmp_path), cuts)
    open_store(tmp_path).close()
    cut_folder(str(tmp_path), cuts)
    check(tmp_path, [], 0)


class Cutting:
    """One simulated machine on which a cut is interrupted at one I/O."""

    def __init__(self, settings: TopicSettings, cuts: CutList) -> None:
        self.world = World(1)
        self.machine = Machine(self.world, Network(self.world), "node")
        self.settings = settings
        self.cuts = cuts
        self.folder = Path("/data")

    def interrupt(self, countdown: int, mode: Mode) -> tuple[list[Sample], bool]:
        """What the log had, and whether the power failed within the cut."""
        machine = self.machine
        with machine.start_process("before").running():
            samples = make(self.folder, self.settings)
        cutting = machine.start_process("cutting")
        machine.trap = Trap(countdown, "", "before", lambda: machine.cut_power(mode, countdown))
        try:
            with cutting.running():
                cut_folder(str(self.folder), self.cuts)
        except Killed:
            interrupted = True
        else:
            interrupted = False
            machine.trap = None
        return samples, interrupted


@pytest.mark.parametrize("mode", ["keep", "drop", "random"])
@pytest.mark.parametrize("settings", [OS, FSYNC])
@pytest.mark.parametrize(
    ("cuts", "end"),
    [
        (CutList({Owner(1, 0): 50}), 50),
        (CutList({Owner(1, 0): 118}), 118),
        (CutList({}, {Owner(1, 0): 40}), 40),
    ],
)
def test_a_cut_that_is_interrupted_anywhere_is_finished_later(
    mode: Mode, settings: TopicSettings, cuts: CutList, end: int
) -> None:
    countdown, interrupted = 0, True
    while interrupted:
        cutting = Cutting(settings, cuts)
        with simulated(cutting.world):
            samples, interrupted = cutting.interrupt(countdown, mode)
            with cutting.machine.start_process("after").running():
                # A start finishes what was begun. Nothing was, if the list is not there.
                store = open_store(cutting.folder)
                assert store.problems == []
                assert store.topics[0].logs[0].end_offset in (end, samples[-1].next)
                store.close()
                cut_folder(str(cutting.folder), cuts)
                check(cutting.folder, [] if cuts.starts else samples, end)
        countdown += 3
    assert countdown > 9
