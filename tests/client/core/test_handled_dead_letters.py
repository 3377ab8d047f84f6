"""What a group stores of a message that it has given up on."""

from __future__ import annotations

import datetime as dt

from fanlog.client.core.handled_dead_letters import dead_letter, died, topic_for, without_content
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import MessageTooLargeError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.dead_letters import REASON_CHARACTERS_MAX, read_death

NOW_US = 1_700_000_000_000_000


def message(value: bytes | None = b"a job") -> Message:
    data = encode_batch(
        [value], keys=[b"alice"], headers=[{"trace": b"7"}], partition=2, priority=4
    )
    stored = Batch(stamp(data, base_offset=9, append_time_us=5, leader_epoch=3, topic=1))
    stored.topic_name = "jobs"
    return MessageBatch(stored).messages[0]


def test_a_dead_letter_has_the_message_and_its_origin() -> None:
    death = died(message(), "billing", "no good", 5, NOW_US)
    value, key, headers, event_time = dead_letter(message(), death)
    assert (value, key) == (b"a job", b"jobs@1.3/2/9/billing")
    assert headers["trace"] == b"7"
    assert event_time == message().event_time
    found = read_death(headers)
    assert found is not None
    assert found == death
    assert (found.topic, found.partition, found.offset) == ("jobs", 2, 9)
    assert (found.queue, found.deliveries, found.priority) == ("billing", 5, 4)
    assert (found.key, found.null) == (b"alice", False)
    assert found.time == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)


def test_a_dead_letter_of_a_tombstone_says_that_it_had_no_value() -> None:
    assert died(message(None), "billing", "no good", 1, NOW_US).null


def test_a_long_reason_is_cut() -> None:
    death = died(message(), "billing", 9999 * "x", 1, NOW_US)
    assert death.reason == REASON_CHARACTERS_MAX * "x"


def test_a_message_that_is_too_large_leaves_the_reason_and_no_content() -> None:
    death = died(message(), "billing", "no good", 5, NOW_US)
    value, key, headers, event_time = without_content(death, MessageTooLargeError("too large"))
    assert (value, key, event_time) == (b"", death.letter_key, None)
    assert "trace" not in headers
    found = read_death(headers)
    assert found is not None
    assert (found.null, found.reason) == (True, "no good (too large)")


def test_dead_letters_go_to_the_chosen_topic_or_to_that_of_their_own() -> None:
    assert topic_for(message(), "") == "dead.jobs"
    assert topic_for(message(), "failed") == "failed"
