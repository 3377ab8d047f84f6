"""Requests from program to program: which answer belongs to which, and who has to answer."""

from __future__ import annotations

import pytest

from fanlog.client.core.reply_table import (
    ReplyTable,
    check_reply,
    maybe_reply_address,
    request_headers,
)
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import ClosedError, FanlogError, NoRespondersError, RequestFailedError
from fanlog.format.batch import Batch, encode_batch, stamp
from fanlog.format.requests import CORRELATION, ERROR, REPLY_TO
from fanlog.model import INBOX_PREFIX

INBOX = INBOX_PREFIX + "a1"


class Waiter:
    def __init__(self) -> None:
        self.outcomes: list[bytes | FanlogError] = []

    def replied(self, message: Message) -> None:
        self.outcomes.append(message.value)

    def failed(self, error: FanlogError) -> None:
        self.outcomes.append(error)


def batch(*messages: tuple[bytes, dict[str, bytes]]) -> MessageBatch:
    values, headers = zip(*messages, strict=True)
    data = encode_batch(list(values), headers=list(headers))
    return MessageBatch(
        Batch(stamp(data, base_offset=0, append_time_us=1, leader_epoch=1, topic=1))
    )


def answer(correlation: bytes, value: bytes) -> tuple[bytes, dict[str, bytes]]:
    return value, {CORRELATION: correlation}


def test_each_answer_goes_to_its_request_whatever_the_order() -> None:
    table, one, two = ReplyTable(), Waiter(), Waiter()
    first, second = table.add(one), table.add(two)
    table.received(batch(answer(second, b"2"), answer(first, b"1")))
    assert (one.outcomes, two.outcomes) == ([b"1"], [b"2"])


def test_a_request_gets_one_answer() -> None:
    table, waiter = ReplyTable(), Waiter()
    name = table.add(waiter)
    table.received(batch(answer(name, b"1"), answer(name, b"again")))
    assert waiter.outcomes == [b"1"]


def test_an_answer_that_comes_too_late_matches_no_later_request() -> None:
    table, late, next_one = ReplyTable(), Waiter(), Waiter()
    name = table.add(late)
    table.forget(name)
    assert table.add(next_one) != name
    table.received(batch(answer(name, b"1"), (b"no correlation", {})))
    assert (late.outcomes, next_one.outcomes) == ([], [])


def test_all_requests_fail_when_no_answers_come_any_more() -> None:
    table, waiter = ReplyTable(), Waiter()
    name = table.add(waiter)
    error = ClosedError("The client was closed.")
    table.fail_all(error)
    table.received(batch(answer(name, b"1")))
    assert waiter.outcomes == [error]


def test_a_topic_without_a_server_is_refused_each_time() -> None:
    table = ReplyTable()
    for now in (0.0, 0.1):
        assert not table.is_checked("svc", now)
        with pytest.raises(NoRespondersError, match="'svc' has no worker or reader"):
            table.check("svc", 0, now)


def test_a_topic_that_had_a_server_is_looked_up_again_after_a_second() -> None:
    table = ReplyTable()
    table.check("svc", 1, 10.0)
    assert table.is_checked("svc", 10.9)
    assert not table.is_checked("other", 10.9)
    assert not table.is_checked("svc", 11.1)


def test_a_reply_goes_to_the_inbox_that_its_request_names() -> None:
    headers = request_headers(INBOX, b"7")
    asked = batch((b"?", {REPLY_TO: INBOX.encode(), CORRELATION: b"7"})).messages[0]
    assert headers == {REPLY_TO: INBOX, CORRELATION: b"7"}
    address = maybe_reply_address(asked, "")
    assert address == (INBOX, {CORRELATION: b"7"})
    assert address is not None
    assert address.is_inbox


def test_a_reply_may_say_that_the_worker_has_failed() -> None:
    asked = batch((b"?", {REPLY_TO: INBOX.encode()})).messages[0]
    address = maybe_reply_address(asked, "no such picture")
    assert address is not None
    failed = batch((b"", address.headers)).messages[0]
    assert failed.headers[ERROR] == b"no such picture"
    with pytest.raises(RequestFailedError, match="no such picture"):
        check_reply(failed)


def test_a_message_that_is_no_request_gets_no_answer() -> None:
    assert maybe_reply_address(batch((b"x", {})).messages[0], "") is None


def test_a_request_may_not_name_any_topic_for_its_answer() -> None:
    asked = batch((b"?", {REPLY_TO: b"orders"})).messages[0]
    address = maybe_reply_address(asked, "")
    assert address is not None
    assert not address.is_inbox
