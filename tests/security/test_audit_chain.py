"""The chain of the audit log: whatever is done to its records, the first bad one is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlog.errors import InvalidArgumentError
from fanlog.security.audit import (
    GENESIS,
    LOST,
    RESTART,
    AuditEntry,
    Head,
    clean,
    decode_record,
    link,
    parse_head,
    show_time,
)
from fanlog.security.audit_check import AuditCheckResult, ChainCheck
from fanlog.security.keys import make_key


def entry(name: str, action: str = "topic.create") -> AuditEntry:
    return AuditEntry(time=show_time(1_700_000_000_000_000), action=action, result="ok", name=name)


def chain(count: int, head: Head | None = None) -> tuple[list[bytes], Head]:
    return link(head or Head(), [entry(f"topic-{n}") for n in range(count)])


def check(values: list[bytes], first: int = 0, *anchors: Head) -> AuditCheckResult:
    checked = ChainCheck(anchors)
    for seq, value in enumerate(values, first):
        checked.take(seq, value)
    return checked.result()


def test_a_chain_that_nobody_touched_is_whole() -> None:
    values, head = chain(10)
    found = check(values, 0, head)
    assert found.ok
    assert (found.records, found.first, found.head, found.remarks) == (10, 0, head, ())
    assert decode_record(values[0]).prev == GENESIS


def test_a_chain_goes_on_after_a_restart() -> None:
    values, head = chain(3)
    more, head = chain(3, head)
    assert check(values + more, 0, head).ok


def test_after_retention_the_check_begins_at_the_oldest_record_and_says_so() -> None:
    values, head = chain(10)
    found = check(values[4:], 4, head)
    assert found.ok
    assert found.first == 4
    assert "before 4" in found.remarks[0]


@given(st.data())
def test_any_changed_byte_is_found_and_its_record_named(data: st.DataObject) -> None:
    values, head = chain(8)
    bad = data.draw(st.integers(0, 7))
    at = data.draw(st.integers(0, len(values[bad]) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != values[bad][at]))
    values[bad] = values[bad][:at] + bytes([other]) + values[bad][at + 1 :]
    found = check(values, 0, head)
    assert not found.ok
    # The newest records have nobody behind them: one of two is wrong.
    assert found.faults[0].seq in ((bad,) if bad < 6 else (bad - 1, bad))


@pytest.mark.parametrize("kept", [0, 1, 9])
def test_a_tail_that_was_cut_off_is_found_by_a_head_kept_elsewhere(kept: int) -> None:
    values, head = chain(10)
    assert check(values[:kept]).ok
    found = check(values[:kept], 0, head)
    assert found.faults[0].seq == kept
    assert f"{kept} to 9 are missing" in found.faults[0].sentence


def test_a_record_that_was_taken_out_is_found() -> None:
    values, _ = chain(10)
    # Numbered as they stand, as if nothing had been there.
    assert check(values[:5] + values[6:]).faults[0].seq == 5


def test_records_that_are_not_there_are_named() -> None:
    values, _ = chain(10)
    checked = ChainCheck()
    for seq in (0, 1, 2, 6, 7):
        checked.take(seq, values[seq])
    (fault,) = checked.result().faults
    assert fault.seq == 3
    assert "3 to 5" in fault.sentence


def test_a_chain_that_was_made_again_does_not_fit_a_head_that_was_kept() -> None:
    _, head = chain(10)
    forged, _ = link(Head(), [entry(f"other-{n}") for n in range(12)])
    assert check(forged).ok
    assert check(forged, 0, head).faults[0].seq == 9


def test_a_head_older_than_what_is_kept_is_remarked_on() -> None:
    values, head = chain(4)
    more, _ = chain(4, head)
    found = check((values + more)[5:], 5, head)
    assert found.ok
    assert any("older" in remark for remark in found.remarks)


def test_a_chain_that_begins_again_is_a_fault() -> None:
    values, head = chain(3)
    again, _ = link(Head(head.seq, GENESIS), [entry("", RESTART), entry("t")])
    found = check(values + again)
    assert [fault.seq for fault in found.faults] == [3]


def test_events_that_did_not_fit_are_remarked_on() -> None:
    values, _ = link(Head(), [AuditEntry(time="", action=LOST, result="failed", count=7)])
    found = check(values)
    assert found.ok
    assert "7 events" in found.remarks[0]


def test_many_faults_are_counted_and_some_told_of() -> None:
    found = check([b"{}"] * 100)
    assert (len(found.faults), found.faults_count) == (20, 100)


def test_a_head_can_be_written_down_and_read_again() -> None:
    _, head = chain(3)
    assert parse_head(f"{head}\n") == head
    for wrong in ("", "3", "3:abc", f"-1:{GENESIS}", f"3:{GENESIS}0"):
        with pytest.raises(InvalidArgumentError):
            parse_head(wrong)


def test_texts_of_others_can_neither_end_a_line_nor_colour_it() -> None:
    text = clean("a\n\x1b[31m\x9b\u2028\u202e\ud800" + "b" * 1000)
    assert text.isprintable()
    assert text.startswith("a\\n\\x1b[31m\\x9b\\u2028\\u202e\\ud800b")
    values, _ = link(Head(), [entry(text)])
    assert json.loads(values[0])["name"] == text


def test_a_key_in_the_wrong_place_is_not_written_down() -> None:
    key = make_key()
    assert key not in clean(f"topic {key}")
    assert key[20:] not in clean("x" * 230 + key)
    assert clean(f"topic {key}") == f"topic {key[:14]}…"
