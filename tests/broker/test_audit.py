"""The audit log: what is noted, by whom, and how it is written."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fanlog.broker.authority import Permit
from fanlog.broker.ports import Audit, AuditResult, Authority
from fanlog.broker.state.audit import NO_AUDIT
from fanlog.config_live import bring_up_to_date
from fanlog.config_security import AuditOptions
from fanlog.errors import ForbiddenError, InvalidNameError
from fanlog.identity import Account, Identity, Rules, Verb
from fanlog.log import small_files
from fanlog.security.audit import (
    AUDIT_TOPIC,
    GENESIS,
    LOST,
    RESTART,
    AuditRecord,
    Head,
    decode_record,
)
from fanlog.security.audit_check import AuditCheckResult, ChainCheck
from fanlog.security.rules import forbidden
from tests.broker.deletions import delete_records
from tests.broker.stage import BEGIN_US, Stage, no_room, stage

WHO = Identity("ana", "127.0.0.1:5000", "native", "127.0.0.1:5000")
Noted = tuple[str, str, str, str]


class Notes:
    """An audit log that keeps what is noted."""

    on = True
    reads = False

    def __init__(self) -> None:
        self.noted: list[Noted] = []

    def note(
        self, who: Identity, action: str, name: str, result: AuditResult, detail: str = "", /
    ) -> None:
        self.noted.append((who.user, action, name, result))


class Nobody:
    """An authority that allows nothing."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        raise forbidden(who, verb, name)


class Asked:
    """A broker, as permits need it."""

    def __init__(self, audit: Audit) -> None:
        self.authority: Authority = Nobody()
        self.audit = audit
        self.denied: dict[str, int] = {}
        self.permissions_epoch = 0


def test_what_a_permit_refuses_is_noted_with_who_asked() -> None:
    notes = Notes()
    permit = Permit(Asked(notes), WHO)
    with pytest.raises(ForbiddenError):
        permit.ask(Verb.MANAGE, "orders")
    assert notes.noted == [("ana", "manage", "orders", "denied")]


def test_a_look_at_what_one_may_see_is_not_noted() -> None:
    notes = Notes()
    permit = Permit(Asked(notes), WHO)
    assert not permit.may(Verb.DESCRIBE, "orders")
    assert notes.noted == []


def test_one_of_several_verbs_is_noted_once() -> None:
    notes = Notes()
    with pytest.raises(ForbiddenError):
        Permit(Asked(notes), WHO).ask_any((Verb.PUBLISH, Verb.SUBSCRIBE), "orders")
    assert notes.noted == [("ana", "publish", "orders", "denied")]


def test_a_refused_publisher_is_noted_once_until_permissions_change() -> None:
    notes = Notes()
    broker = Asked(notes)
    permit = Permit(broker, WHO)
    for _ in range(3):
        assert isinstance(permit.may_publish("orders"), ForbiddenError)
    assert notes.noted == [("ana", "publish", "orders", "denied")]
    broker.permissions_epoch += 1
    permit.may_publish("orders")
    assert len(notes.noted) == 2


def test_without_an_audit_log_nothing_is_kept() -> None:
    with pytest.raises(ForbiddenError):
        Permit(Asked(NO_AUDIT), WHO).ask(Verb.MANAGE, "orders")


# Writing it down


def told(on: Stage) -> list[AuditRecord]:
    """All that readers of the audit log see."""
    if on.core.catalog.find(AUDIT_TOPIC) is None:
        return []
    return [decode_record(bytes(value or b"")) for value in on.values(AUDIT_TOPIC)]


def settled(on: Stage) -> list[AuditRecord]:
    """The same when the turn has ended, and the disk has what was written."""
    on.run()
    on.sync_group.sync()
    on.run()
    return told(on)


def after(on: Stage, seconds: float) -> list[AuditRecord]:
    on.runtime.time_us += int(seconds * 1_000_000)
    on.core.tick()
    return settled(on)


def chain_of(on: Stage, *anchors: Head) -> AuditCheckResult:
    checked = ChainCheck(anchors)
    partition = on.core.catalog.get(AUDIT_TOPIC).partitions[0]
    for seq, value in enumerate(on.values(AUDIT_TOPIC), partition.log.start_offset):
        checked.take(seq, bytes(value or b""))
    return checked.result()


def kept(on: Stage) -> Head:
    """The head, once it is in its file."""
    after(on, 2)
    after(on, 2)
    return chain_of(on).head


def by(user: str, address: str = "192.0.2.7:4000") -> Identity:
    return Identity(user, address, "native", address)


def deny(on: Stage, name: str, who: Identity = WHO) -> None:
    on.core.audit.note(who, "publish", name, "denied")


def change(on: Stage, name: str, who: Identity = WHO) -> None:
    on.core.audit.note(who, "topic.create", name, "ok")


def test_a_change_is_written_at_the_end_of_the_turn_and_shown_once_durable(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        account = Account(name="ana", kind="key", rules=Rules(), id="k1")
        who = Identity("ana", "127.0.0.1:5000", "native", "127.0.0.1:5000", account)
        on.core.audit.note(who, "topic.delete", "orders", "ok", "3 partitions")
        on.run()
        assert told(on) == []
        (record,) = settled(on)
        assert record == AuditRecord(
            seq=0,
            prev=GENESIS,
            time="2023-11-14T22:13:20.000000Z",
            action="topic.delete",
            name="orders",
            result="ok",
            user="ana",
            account="key",
            key="k1",
            address="127.0.0.1:5000",
            listener="native",
            detail="3 partitions",
        )


async def test_a_reader_follows_the_audit_log(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        change(on, "one")
        settled(on)
        reader = await on.subscribe(AUDIT_TOPIC)
        change(on, "two")
        settled(on)
        assert reader.offsets == [0, 1]


def test_without_a_data_folder_the_audit_log_lives_in_memory() -> None:
    with stage(audit=AuditOptions()) as on:
        change(on, "orders")
        assert [record.name for record in settled(on)] == ["orders"]
        assert chain_of(on).ok


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("off", ""),
        ("changes", "topic.create group.delete"),
        ("denials", "topic.create group.delete publish login-failed"),
        ("all", "topic.create group.delete publish login-failed login subscribe"),
    ],
)
def test_the_level_says_what_is_written(data: Path, level: Any, wanted: str) -> None:
    with stage(data, audit=AuditOptions(level=level)) as on:
        note = on.core.audit.note
        note(WHO, "topic.create", "t", "ok")
        note(WHO, "group.delete", "g", "failed")
        note(WHO, "publish", "t", "denied")
        note(WHO, "login", "ana", "failed")
        note(WHO, "login", "ana", "ok")
        note(WHO, "subscribe", "t", "ok")
        found = {
            f"{r.action}-failed" if r.result == "failed" and r.action == "login" else r.action
            for r in after(on, 2)
        }
        assert found == set(wanted.split())


def test_a_million_refusals_of_one_peer_are_one_record(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        for port in range(10_000):
            deny(on, "orders", by("eve", f"192.0.2.7:{port}"))
        (record,) = after(on, 1)
        assert (record.count, record.address, record.name) == (10_000, "192.0.2.7", "orders")
        assert record.until


def test_a_peer_that_tries_many_names_shares_one_record_for_most_of_them(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        for n in range(10_000):
            deny(on, f"topic-{n}", by("eve"))
        deny(on, "orders", by("bob", "192.0.2.8:1"))
        records = after(on, 1)
        assert [r.user for r in records] == ["eve"] * 11 + ["bob"]
        assert (records[10].count, records[10].name) == (9990, "")


def test_many_peers_with_many_names_stay_within_the_bound(data: Path) -> None:
    with stage(data, audit=AuditOptions(merged_max=50)) as on:
        for n in range(1000):
            deny(on, "orders", by(f"user-{n}"))
        records = after(on, 1)
        assert len(records) == 101
        assert sum(r.count for r in records) == 1000


def test_while_a_flood_lasts_it_is_written_less_often(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        for _ in range(600):
            for n in range(20):
                deny(on, f"topic-{n}", by("eve"))
            after(on, 1)
        # Ten minutes: 1 + 2 + 4 + … seconds, then once a minute.
        assert len(told(on)) < 20 * 11
        for _ in range(3):
            after(on, 60)
        before = len(told(on))
        deny(on, "orders")
        assert len(after(on, 1)) == before + 1


def test_a_flood_of_refusals_neither_delays_nor_merges_changes(data: Path) -> None:
    with stage(data, audit=AuditOptions(merged_max=1)) as on:
        for n in range(100):
            deny(on, f"topic-{n}", by(f"eve-{n}"))
            change(on, "orders")
        assert [r.action for r in settled(on)] == ["topic.create"] * 100


def test_the_chain_goes_on_after_a_restart(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        on.keep_journal()
        for n in range(3):
            change(on, f"topic-{n}")
            settled(on)
    with stage(data, audit=AuditOptions()) as on:
        change(on, "later")
        assert [r.seq for r in settled(on)] == [0, 1, 2, 3]
        assert chain_of(on).ok
        assert on.core.status().problems == ()


def test_the_chain_goes_on_when_retention_has_removed_every_record(data: Path) -> None:
    options = AuditOptions(retention_seconds=60)
    with stage(data, audit=options) as on:
        change(on, "orders")
        head = kept(on)
    with stage(data, audit=options, time_us=BEGIN_US + 10**10) as on:
        partition = on.core.catalog.get(AUDIT_TOPIC).partitions[0]
        partition.log.begin_segment()
        partition.log.drop_before(1)
    with stage(data, audit=options, time_us=BEGIN_US + 10**10) as on:
        change(on, "later")
        (record,) = settled(on)
        assert (record.seq, record.prev) == (1, head.hash)
        assert on.core.status().problems == ()


def test_a_tail_that_was_cut_off_is_reported_at_the_next_start(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        change(on, "orders")
        kept(on)
    (log,) = (data / "topics").glob("*_fanlog.audit")
    shutil.rmtree(log)
    with stage(data, audit=AuditOptions()) as on:
        assert "has lost its records 0 to 0" in on.core.status().problems[0]
        (record,) = after(on, 1)
        assert (record.action, record.result) == ("audit.fault", "failed")


def test_a_head_file_that_says_something_else_is_reported(data: Path, tmp_path: Path) -> None:
    options = AuditOptions(head_file=str(tmp_path / "elsewhere" / "head.json"))
    (tmp_path / "elsewhere").mkdir()
    with stage(data, audit=options) as on:
        change(on, "orders")
        kept(on)
    small_files.save(options.head_file, {"seq": 0, "hash": "ab" * 32}, durable=False)
    with stage(data, audit=options) as on:
        assert "was changed: record 0" in on.core.status().problems[0]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 2, "seq": 1}', b"\x00" * 9])
def test_a_damaged_head_file_does_not_stop_a_start(data: Path, content: bytes) -> None:
    with stage(data, audit=AuditOptions()) as on:
        change(on, "orders")
        kept(on)
    (data / "audit.json").write_bytes(content)
    with stage(data, audit=AuditOptions()) as on:
        assert "is of no use" in on.core.status().problems[0]
        change(on, "later")
        assert [r.seq for r in settled(on)] == [0, 1]


def test_a_newest_record_that_cannot_be_read_begins_the_chain_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data, audit=AuditOptions()) as on:
        for name in ("orders", "more"):
            change(on, name)
            settled(on)
    with ExitStack() as held:
        with monkeypatch.context() as broken:
            broken.setattr("fanlog.log.partition.read_block", no_room)
            on = held.enter_context(stage(data, audit=AuditOptions()))
        assert "newest record of the audit log, 1," in on.core.status().problems[-1]
        records = after(on, 1)
        assert (records[2].action, records[2].prev) == (RESTART, GENESIS)
        assert [fault.seq for fault in chain_of(on).faults] == [2]


def test_on_a_full_disk_changes_wait_and_what_does_not_fit_is_counted(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(data, audit=AuditOptions(pending_max=5)) as on:
        change(on, "first")
        settled(on)
        with monkeypatch.context() as full:
            full.setattr("os.pwrite", no_room)
            full.setattr("os.pwritev", no_room)
            for n in range(8):
                change(on, f"topic-{n}")
                deny(on, "orders")
                on.run()
            after(on, 2)
            assert "can't be written" in on.core.status().problems[0]
        records = after(on, 2)
        names = [r.name for r in records if r.action == "topic.create"]
        assert names == ["first", *(f"topic-{n}" for n in range(5))]
        assert [r.count for r in records if r.action == LOST] == [3]
        assert [r.count for r in after(on, 2) if r.result == "denied"] == [8]
        assert chain_of(on).ok
        assert on.core.status().problems == ()


def test_a_failed_log_does_not_stop_the_broker(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        change(on, "orders")
        on.run()
        on.fail_sync()
        for _ in range(3):
            change(on, "more")
            after(on, 1)
        assert told(on) == []
        assert on.core.status().state == "failing"


def test_nobody_can_publish_to_the_audit_log_or_change_it(data: Path) -> None:
    with stage(data, audit=AuditOptions()) as on:
        change(on, "orders")
        settled(on)
        with pytest.raises(InvalidNameError):
            on.core.delete_topic(AUDIT_TOPIC)
        with pytest.raises(InvalidNameError):
            delete_records(on.core, AUDIT_TOPIC, {0: 1})
        publisher = on.publish(AUDIT_TOPIC, [b"forged"])
        on.run()
        assert publisher.refusals
        assert len(settled(on)) == 1


def test_retention_follows_the_settings(data: Path) -> None:
    options = AuditOptions()
    with stage(data, audit=options) as on:
        change(on, "orders")
        settled(on)
        bring_up_to_date(options, AuditOptions(retention_seconds=60, retention_bytes=0))
        on.core.audit.settings_changed()
        settings = on.core.describe(AUDIT_TOPIC).settings
        assert (settings.retention_seconds, settings.retention_bytes) == (60, 0)
    with stage(data, audit=AuditOptions(retention_seconds=120)) as on:
        assert on.core.describe(AUDIT_TOPIC).settings.retention_seconds == 120
