"""What needs attention, found in snapshots that are made up: the time is theirs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.telemetry.attention import FINDINGS_MAX, find
from fanlog.telemetry.findings import BrokerFacts, Finding, OpenTransaction, Severity, Trouble
from fanlog.telemetry.histograms import DELAY_US, SYNC_BYTES, SYNC_US, TURN_US, Histogram
from fanlog.telemetry.process import ProcessMetrics
from fanlog.telemetry.recent import NAMED_MAX, Recent
from fanlog.telemetry.snapshot import (
    OTHERS,
    GroupMetrics,
    Levels,
    ListenerMetrics,
    QueueMetrics,
    ReaderMetrics,
    Snapshot,
    Times,
    TopicMetrics,
    Totals,
)

NO_TIMES = Times(
    turn_us=Histogram(TURN_US).read(),
    loop_delay_us=Histogram(DELAY_US).read(),
    sync_us=Histogram(SYNC_US).read(),
    sync_bytes=Histogram(SYNC_BYTES).read(),
)
PROCESS = ProcessMetrics(
    started=0.0,
    cpu_seconds=1.0,
    resident_bytes=1,
    virtual_bytes=1,
    threads=1,
    open_files=10,
    open_files_max=1000,
    disk_free_bytes=500 << 30,
    disk_total_bytes=1000 << 30,
)
WELL = Snapshot(
    time=1e9,
    release="1",
    python="3",
    state="ok",
    role="broker",
    ready=True,
    uptime_seconds=0.0,
    scan_age_seconds=0.0,
    totals=Totals(),
    levels=Levels(),
    times=NO_TIMES,
    process=PROCESS,
)


def at(seconds: float, **changed: Any) -> Snapshot:
    given = {"time": 1e9 + seconds, "uptime_seconds": seconds, **changed}
    return msgspec.structs.replace(WELL, **given)


def seen(*snapshots: Snapshot, facts: BrokerFacts | None = None) -> list[Finding]:
    recent = Recent()
    for one in snapshots:
        recent.take(one)
    return find(snapshots[-1], recent, facts or BrokerFacts())


def kinds(found: list[Finding]) -> list[str]:
    return [one.kind for one in found]


def group(name: str, lag: int, members: int = 1) -> GroupMetrics:
    return GroupMetrics(name=name, lag=lag, members=members)


def test_a_broker_that_is_well_needs_nothing() -> None:
    assert seen(at(1), at(500)) == []


def test_lag_that_grows_for_a_minute_is_named() -> None:
    rising = [at(t, groups=(group("billing", 100 + 10 * t),)) for t in range(0, 120, 5)]
    (found,) = seen(*rising)
    assert (found.kind, found.link, found.about) == ("lag_growing", "group", "billing")
    assert "10 per second" in found.text
    assert "1,250 messages" in found.text
    assert seen(*rising[:6]) == []


def test_lag_that_falls_or_stands_still_is_no_reason() -> None:
    assert seen(*(at(t, groups=(group("g", 9000),)) for t in range(0, 600, 5))) == []
    assert seen(*(at(t, groups=(group("g", 9000 - t),)) for t in range(0, 600, 5))) == []


def test_a_group_that_nobody_reads_for() -> None:
    away = [at(t, groups=(group("g", 50, members=0),)) for t in range(0, 30, 5)]
    (found,) = seen(*away)
    assert (found.kind, found.severity) == ("no_member", Severity.INFO)
    assert seen(*away[:2]) == []
    # A Spark query moves its group without being a member.
    assert seen(*away, facts=BrokerFacts(committers={"g": 5.0})) == []
    # While more arrives it is more urgent.
    more = [at(t, groups=(group("g", 50 + t, members=0),)) for t in range(0, 30, 5)]
    assert seen(*more)[0].severity is Severity.WARN
    # One that comes back within seconds is not worth a word.
    back = [at(t, groups=(group("g", 50, members=t % 10 // 5),)) for t in range(0, 60, 5)]
    assert "no_member" not in kinds(seen(*back))


def test_a_queue_without_workers() -> None:
    queue = QueueMetrics(name="mails", lag=3, workers=0)
    (found,) = seen(at(0, queues=(queue,)), at(20, queues=(queue,)))
    assert (found.kind, found.link, found.about) == ("no_worker", "queue", "mails")


def test_jobs_that_died_lately() -> None:
    def dead(t: float, count: int) -> Snapshot:
        queue = QueueMetrics(name="mails", workers=1, dead_lettered=count)
        return at(t, queues=(queue,), totals=Totals(dead_letters=count))

    (found,) = seen(dead(1, 0), dead(20, 3))
    assert (found.kind, found.about) == ("dead_letters_new", "mails")
    assert found.text.startswith("3 jobs")
    # A queue that comes with its first dead letter.
    assert kinds(seen(at(1), dead(20, 1))) == ["dead_letters_new"]
    # Long ago.
    old = [dead(t, 3) for t in range(5000, 7000, 15)]
    assert seen(dead(1, 0), dead(20, 3), *old) == []
    facts = BrokerFacts(dead_letters=(("dead.mails", 12),))
    (found,) = seen(*old, facts=facts)
    assert (found.kind, found.link, found.about) == ("dead_letters", "dead-letters", "dead.mails")
    # One sentence says both; and none that they died, once they are replayed or deleted.
    where = {"mails": "dead.mails"}
    facts = BrokerFacts(dead_letters=(("dead.mails", 12),), dead_letter_topics=where)
    (found,) = seen(dead(1, 0), dead(20, 3), facts=facts)
    assert (found.kind, found.target) == ("dead_letters_new", "dead.mails")
    assert "12 dead letters wait in dead.mails." in found.text
    gone = BrokerFacts(dead_letters=(), dead_letter_topics=where)
    assert seen(dead(1, 0), dead(20, 3), facts=gone) == []


def test_messages_that_readers_missed() -> None:
    def missed(t: float, count: int) -> Snapshot:
        topic = TopicMetrics(name="ticks", readers=1, missed_messages=count)
        return at(t, topics=(topic,), totals=Totals(missed={"skipped": count}))

    (found,) = seen(missed(1, 0), missed(20, 70))
    assert (found.kind, found.link, found.about) == ("missed", "topic", "ticks")
    # Where the topic is not named, the reason is.
    unnamed = [at(t, totals=Totals(missed={"retention": n})) for t, n in ((1, 0), (20, 5))]
    (found,) = seen(*unnamed)
    assert "retention" in found.text
    # A topic that is named again brings nothing that is old.
    assert seen(at(5000, totals=Totals(missed={"skipped": 70})), missed(5020, 70)) == []


@pytest.mark.parametrize(
    ("free_gib", "kind", "severity"),
    [(20, "disk_low", Severity.BAD), (80, "disk_low", Severity.WARN), (200, None, None)],
)
def test_a_disk_that_is_nearly_full(
    free_gib: int, kind: str | None, severity: Severity | None
) -> None:
    process = msgspec.structs.replace(PROCESS, disk_free_bytes=free_gib << 30)
    found = seen(at(1, process=process))
    assert [(one.kind, one.severity) for one in found] == ([(kind, severity)] if kind else [])


def test_a_disk_that_fills() -> None:
    def free(t: int) -> Snapshot:
        return at(
            t, process=msgspec.structs.replace(PROCESS, disk_free_bytes=(500 << 30) - t * 10**7)
        )

    (found,) = seen(*(free(t) for t in range(0, 1200, 60)))
    assert (found.kind, found.severity) == ("disk_filling", Severity.BAD)
    assert "15 hours" in found.text
    full = BrokerFacts(disk_full=True)
    assert kinds(seen(free(0), facts=full)) == ["disk_full"]


def test_file_descriptors_and_the_event_loop() -> None:
    process = msgspec.structs.replace(PROCESS, open_files=990)
    assert kinds(seen(at(1, process=process))) == ["files"]
    delay = Histogram(DELAY_US)
    for _ in range(100):
        delay.observe(200_000)
    late = msgspec.structs.replace(NO_TIMES, loop_delay_us=delay.read())
    (found,) = seen(at(99), at(120, times=late))
    assert (found.kind, found.severity) == ("loop_delay", Severity.WARN)
    # It is over a minute later.
    assert seen(at(99), at(120, times=late), *(at(t, times=late) for t in range(180, 260, 5))) == []
    # A start keeps the loop busy.
    assert seen(at(1), at(20, times=late)) == []


def test_logins_and_refusals_are_for_operators() -> None:
    def failed(t: float, count: int) -> Snapshot:
        listener = ListenerMetrics(name="web", auth_failures=count)
        return at(t, listeners=(listener,), totals=Totals(denied={"publish": count}))

    found = seen(failed(1, 0), failed(20, 6))
    assert set(kinds(found)) == {"auth_failures", "denied"}
    assert all(one.admin for one in found)


def test_slow_readers_are_for_operators() -> None:
    reader = ReaderMetrics(connection="c1", listener="web", target="t", bytes=1 << 30, messages=5)
    (found,) = seen(at(1, readers=(reader,)))
    assert (found.kind, found.about, found.admin) == ("slow_reader", "c1", True)


def test_what_else_the_broker_knows() -> None:
    facts = BrokerFacts(
        in_memory=True,
        troubles=(Trouble("failed", "orders", "orders-0: it failed"),),
        problems=("A ledger lost something.",),
        certificate="The certificate has expired.",
        late=("delayed messages are late",),
        transactions=(OpenTransaction("load", 900.0), OpenTransaction("", 10.0)),
        failed_pipelines=(("archive", "no disk"),),
    )
    found = seen(at(1, levels=Levels(topics=1)), facts=facts)
    assert kinds(found) == [
        "log_failed",
        "damage",
        "certificate",
        "schedule_late",
        "transaction_old",
        "pipeline_failed",
        "memory_only",
    ]
    assert "1 transaction has" in found[4].text


names = st.sampled_from([OTHERS, *(f"n{i}" for i in range(300))])
groups = st.lists(
    st.builds(
        GroupMetrics,
        name=names,
        lag=st.integers(0, 1 << 60),
        members=st.integers(0, 3),
    ),
    max_size=250,
    unique_by=lambda one: one.name,
)


@given(st.lists(st.tuples(st.floats(0, 500), groups), min_size=1, max_size=6))
def test_it_remembers_and_finds_a_bounded_number(
    given: list[tuple[float, list[GroupMetrics]]],
) -> None:
    recent, now = Recent(), 0.0
    for wait, some in given:
        now += wait
        snapshot = at(now, groups=tuple(some))
        recent.take(snapshot)
        assert len(recent.group_lag) <= NAMED_MAX
        assert len(recent.deserted_groups) <= NAMED_MAX
        found = find(snapshot, recent, BrokerFacts())
        assert len(found) <= FINDINGS_MAX
        assert all(one.about != OTHERS for one in found)
        ranks = [list(Severity).index(one.severity) for one in found]
        assert ranks == sorted(ranks)
        history = recent.history()
        assert len({len(getattr(history, name)) for name in history.__struct_fields__}) == 1


@given(st.lists(st.tuples(st.floats(0.1, 60), st.integers(0, 10**9)), min_size=2, max_size=40))
def test_rates_are_what_was_counted_in_the_time(steps: list[tuple[float, int]]) -> None:
    recent, now, total = Recent(), 0.0, 0
    for wait, more in steps:
        now, total = now + wait, total + more
        recent.take(at(now, totals=Totals(published_messages=total)))
    rate = recent.rates().published_messages
    assert 0 <= rate <= max(more for _, more in steps) / min(0.1, *(wait for wait, _ in steps)) + 1
