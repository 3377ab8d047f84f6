"""The fetches of one peer: each waits for new records, then for memory, and is answered once."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fanlog.broker.messages.topics import Partition
from fanlog.errors import FanlogError, LimitError, allow_more
from fanlog.format import messages
from fanlog.format.frames import fetched_head
from fanlog.format.messages import decode
from fanlog.listeners.request_session import RequestSession


class FetchingSession(RequestSession, Protocol):
    """A session with its fetches."""

    fetches: Fetches


class Fetches:
    """`under_way` counts the pending ones."""

    __slots__ = ("_waiting", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self._waiting: dict[_WaitingFetch, None] = {}

    def take(self, session: FetchingSession, request: int, payload: memoryview) -> None:
        """Answers a FETCH, now or when there is something to answer."""
        wanted = decode(messages.Fetch, payload)
        options = session.options
        partition = session.broker.catalog.partition(wanted.number, wanted.partition)
        refusal = session.permit.may_fetch(partition.topic.name)
        if refusal is not None:
            raise refusal
        if self.under_way >= options.fetches_max:
            raise LimitError(
                f"This connection has {self.under_way} fetches under way, which is the limit. Wait "
                "for "
                "some, or open another connection. " + allow_more("listener.fetches_max")
            )
        self.under_way += 1
        fetch = _Fetch(session, request, wanted, partition)
        wait_seconds = min(wanted.wait_ms / 1000, options.fetch_wait_seconds_max)
        if wanted.offset < partition.visible_end or wait_seconds <= 0:
            fetch.begin()
        else:
            self._waiting[_WaitingFetch(fetch, wait_seconds, self._waiting)] = None

    def close(self) -> None:
        """The peer is gone: its fetches end."""
        for waiting in list(self._waiting):
            waiting.stop()


class _Fetch:
    """One request."""

    __slots__ = ("partition", "request", "session", "size", "wanted")

    def __init__(
        self,
        session: FetchingSession,
        request: int,
        wanted: messages.Fetch,
        partition: Partition,
    ) -> None:
        self.session = session
        self.request = request
        self.wanted = wanted
        self.partition = partition
        # At least one batch is read, even if fewer bytes were requested.
        self.size = max(1, min(wanted.bytes_max, session.options.fetch_bytes_max))

    def begin(self) -> None:
        """Reads, as soon as there is memory for the answer."""
        session = self.session
        session.broker.fetch_memory.begin(session.outlet, self.size, self._read)

    def _read(self) -> None:
        # A peer that fetches one range after the other gets long ones; a peer with many fetches at
        # once would fill the memory with them.
        session = self.session
        alone = session.fetches.under_way == 1
        session.broker.reading.fetch(
            self.partition, self.wanted.offset, self.size, self._done, at_length=alone
        )

    def _done(self, got: list[memoryview] | FanlogError) -> None:
        session, partition = self.session, self.partition
        session.fetches.under_way -= 1
        size = 0
        # It may have waited for long: permissions may have changed.
        refusal = session.permit.may_fetch(partition.topic.name)
        if refusal is not None:
            got = refusal
        if isinstance(got, FanlogError):
            session.fail(self.request, got)
        else:
            size = sum(map(len, got))
            session.broker.fetched_bytes += size
            head = fetched_head(
                self.request, size, partition.visible_end, partition.log.start_offset
            )
            session.outlet.respond([head, *got])
        session.broker.fetch_memory.end(session.outlet, self.size, size)


class _WaitingFetch:
    """A fetch that waits for new records. A class, and no closure that knows itself: only the
    garbage collector would free that."""

    __slots__ = ("_all", "_fetch", "_timer")

    def __init__(self, fetch: _Fetch, seconds: float, others: dict[_WaitingFetch, None]) -> None:
        self._fetch = fetch
        self._all = others
        self._timer = asyncio.get_running_loop().call_later(seconds, self.wake)
        fetch.session.broker.reading.when_more(fetch.partition, self.wake)

    def wake(self) -> None:
        self.stop()
        self._fetch.begin()

    def stop(self) -> None:
        self._timer.cancel()
        self._fetch.session.broker.reading.no_more(self._fetch.partition, self.wake)
        self._all.pop(self, None)
