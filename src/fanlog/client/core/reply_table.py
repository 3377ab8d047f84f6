"""Requests from program to program that wait for their answers: which answer belongs to which, who
has to answer, and what an answer looks like. No I/O, and times are handed in.

Law: a request gets one answer. One that comes too late matches nothing, because no number is used
again.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fanlog.client.message import Message, MessageBatch
from fanlog.errors import FanlogError, NoRespondersError, RequestFailedError
from fanlog.format.requests import CORRELATION, ERROR, REPLY_TO
from fanlog.model import INBOX_PREFIX

# How long a topic that had a server is assumed to have one.
_RESPONDERS_SECONDS = 1.0
_CHECKED_TOPICS_MAX = 1024


class ReplyWaiter(Protocol):
    """Waits for one answer. It may be called again when it has given up, or has its answer."""

    def replied(self, message: Message) -> None: ...
    def failed(self, error: FanlogError) -> None: ...


class ReplyTable:
    """The open requests of one client."""

    __slots__ = ("_checked", "_number", "_waiting")

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[bytes, ReplyWaiter] = {}
        # Until when a topic needs no other look for its servers.
        self._checked: dict[str, float] = {}

    # Who answers

    def is_checked(self, topic: str, now: float) -> bool:
        """Whether the topic had a server a moment ago."""
        return self._checked.get(topic, -1.0) > now

    def check(self, topic: str, followers: int, now: float) -> None:
        """The broker says how many workers and readers a topic has. Raises if nobody would
        answer."""
        if not followers:
            raise NoRespondersError(
                f"{topic!r} has no worker or reader, so nobody would answer. Start a worker, "
                f"for example with client.serve({topic!r}, handler)."
            )
        if len(self._checked) >= _CHECKED_TOPICS_MAX:
            self._checked.clear()
        self._checked[topic] = now + _RESPONDERS_SECONDS

    # Requests

    def add(self, waiter: ReplyWaiter) -> bytes:
        """The name under which the answer to a request comes."""
        self._number += 1
        correlation = b"%d" % self._number
        self._waiting[correlation] = waiter
        return correlation

    def forget(self, correlation: bytes) -> None:
        """Nobody waits for this answer any more."""
        self._waiting.pop(correlation, None)

    def received(self, batch: MessageBatch) -> None:
        """Answers have come. Those that nobody waits for are dropped."""
        for message in batch.messages:
            waiter = self._waiting.pop(message.headers.get(CORRELATION, b""), None)
            if waiter is not None:
                waiter.replied(message)

    def fail_all(self, error: FanlogError) -> None:
        """No answers come any more."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            waiter.failed(error)


def request_headers(inbox: str, correlation: bytes) -> dict[str, str | bytes]:
    """Where the answer to a request goes."""
    return {REPLY_TO: inbox, CORRELATION: correlation}


def check_reply(message: Message) -> Message:
    """The answer. Raises if the worker has failed."""
    error = message.headers.get(ERROR)
    if error is not None:
        raise RequestFailedError(error.decode(errors="replace"))
    return message


class ReplyAddress(NamedTuple):
    """Where an answer goes, and its headers."""

    inbox: str
    headers: dict[str, bytes]

    @property
    def is_inbox(self) -> bool:
        """A request may name any topic. Answers go to inboxes only."""
        return self.inbox.startswith(INBOX_PREFIX)


def maybe_reply_address(request: Message, error: str) -> ReplyAddress | None:
    """Where the answer to a message goes; None if it is no request. With `error`, the answer says
    that the worker has failed."""
    asked = request.headers
    reply_to = asked.get(REPLY_TO)
    if reply_to is None:
        return None
    headers = {CORRELATION: asked.get(CORRELATION, b"")}
    if error:
        headers[ERROR] = error.encode(errors="replace")
    return ReplyAddress(reply_to.decode(errors="replace"), headers)
