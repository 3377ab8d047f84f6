"""The audit log over REST: search, newest records first, and a check of its chain.

Law: one request looks at a bounded number of records, in slices. The answer says where the next
request resumes, so that a browser can read a log of any size and show its progress.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from fanlog.client.arguments import as_start
from fanlog.errors import (
    DamagedError,
    ForbiddenError,
    FormatError,
    InvalidArgumentError,
    NotSupportedError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Route
from fanlog.security.audit import AUDIT_TOPIC, AuditRecord, Head, decode_record, parse_head
from fanlog.security.audit_check import AuditCheckResult, ChainCheck, Fault

if TYPE_CHECKING:
    from fanlog.client.aio import Client
    from fanlog.format.batch import Batch

# What one fetch brings: decoding it takes a few ms.
_FETCH_BYTES = 64 * 1024
# Records that are read at a time, from the newest back.
_WINDOW = 250
# Records that one search looks at: about half a second.
_SEARCHED_MAX = 10_000
_HEAD_PATTERN = "^[0-9]{1,18}:[0-9a-f]{64}$"


class AuditSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The search conditions. A record must match all of them."""

    text: Annotated[
        str,
        Meta(
            max_length=255, description="A text in any field of the record, in upper or lower case."
        ),
    ] = ""
    who: Annotated[
        str, Meta(max_length=255, description="A text in the user, the account or the key's id.")
    ] = ""
    action: Annotated[
        str, Meta(max_length=100, description="The action, such as `topic.delete` or `key.*`.")
    ] = ""
    name: Annotated[
        str,
        Meta(
            max_length=255,
            description="The name that the action was about; `*` stands for any text.",
        ),
    ] = ""
    result: Annotated[Literal["", "ok", "denied", "failed"], Meta(description="How it ended.")] = ""
    since: Annotated[
        str,
        Meta(
            max_length=64,
            description="Only records from this time on: a time, or an age such as 2h.",
        ),
    ] = ""
    until: Annotated[str, Meta(max_length=64, description="Only records before this time.")] = ""
    before: (
        Annotated[int, Meta(ge=0, lt=2**62, description="The `next` of the previous answer.")]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=500, description="Most records.")] = 50


class AuditFound(msgspec.Struct, frozen=True, kw_only=True):
    """Records, the newest first. With `next` there may be more: give it as `before`. There may be
    more even if none was found: one request searches a bounded number of records."""

    records: list[AuditRecord]
    next: int | None = None
    searched: Annotated[int, Meta(description="Records that were searched.")] = 0
    total: Annotated[int, Meta(description="Records in the log.")] = 0
    unreadable: Annotated[int, Meta(description="Records that can't be read.")] = 0


class VerifyQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: Annotated[
        str,
        Meta(
            max_length=100,
            pattern="^([0-9]{1,18}:([0-9a-f]{64})?)?$",
            description="The `next` of the previous answer: the check continues there.",
        ),
    ] = ""
    head: Annotated[
        list[Annotated[str, Meta(max_length=100, extra_json_schema={"pattern": _HEAD_PATTERN})]],
        Meta(
            max_length=20,
            description="Heads that you stored elsewhere, as `fanlog audit head` prints them. "
            "With a head, the check also finds a log that was rewritten or cut off.",
        ),
    ] = []
    limit: Annotated[
        int, Meta(ge=100, le=20_000, description="The largest number of records to check.")
    ] = 5_000


class AuditCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. If it has a `next`, the check is not at the end: ask again with it as
    `after`."""

    ok: Annotated[bool, Meta(description="True if these records have no fault.")]
    records: Annotated[int, Meta(description="Records that were checked.")]
    first: Annotated[
        int, Meta(description="The oldest record that was checked; -1 if there are none.")
    ]
    last: Annotated[
        int, Meta(description="The newest record that was checked; -1 if there are none.")
    ]
    oldest: Annotated[int, Meta(description="The oldest record of the log.")]
    newest: Annotated[int, Meta(description="The newest record of the log; -1 without one.")]
    head: Annotated[
        str, Meta(description="Number and hash of the last record. Store it elsewhere.")
    ]
    faults: Annotated[
        list[Fault], Meta(description="The faults. Only the first ones if there are very many.")
    ]
    faults_count: int
    remarks: list[str]
    next: str = ""


class _Span(NamedTuple):
    """The records that a log has: from `start` up to, not including, `end`."""

    start: int
    end: int


class _Read(NamedTuple):
    """A record; or, without a value, records up to `next` that can't be read."""

    seq: int
    value: bytes | None
    next: int


async def _span(client: Client) -> _Span:
    try:
        (partition,) = (await client.describe_topic(AUDIT_TOPIC)).partitions
    except TopicNotFoundError:
        return _Span(0, 0)
    return _Span(partition.start_offset, partition.visible_end)


async def _read(call: Call[Any, Any], first: int, end: int) -> AsyncIterator[_Read]:
    """The records from `first` up to `end`, with the turns of others between them."""
    client, slices = call.client, call.broker.slices
    while first < end:
        try:
            found = await client.fetch(AUDIT_TOPIC, 0, first, bytes_max=_FETCH_BYTES)
        except OffsetOutOfRangeError:
            # Retention has deleted it meanwhile.
            start = (await _span(client)).start
            if start <= first:
                raise
            first = start
            continue
        except DamagedError as fault:
            if fault.next <= first:
                raise
            yield _Read(first, None, min(fault.next, end))
            first = fault.next
            continue
        if not found.batches:
            return
        async for seq, value in slices.each(_records(found.batches)):
            if first <= seq < end:
                yield _Read(seq, bytes(value or b""), seq + 1)
        first = found.batches[-1].header.next_offset
        # What is in memory is fetched without a wait.
        await asyncio.sleep(0)


def _records(batches: Iterable[Batch]) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        yield from zip(batch.offsets, batch.values, strict=True)


# Search


class _AuditFilter:
    """Which records to search for."""

    def __init__(self, query: AuditSearch) -> None:
        self._query = query
        self._text = query.text.casefold()
        self._who = query.who.casefold()

    def fits(self, record: AuditRecord) -> bool:
        query = self._query
        if query.result and record.result != query.result:
            return False
        if query.action and not fnmatch.fnmatchcase(record.action, query.action):
            return False
        if query.name and not fnmatch.fnmatchcase(record.name, query.name):
            return False
        if self._who and not self._is_by(record):
            return False
        return not self._text or self._text in _all_of(record)

    def _is_by(self, record: AuditRecord) -> bool:
        return self._who in "\n".join((record.user, record.account, record.key)).casefold()


def _all_of(record: AuditRecord) -> str:
    fields = (
        record.action,
        record.name,
        record.result,
        record.user,
        record.account,
        record.key,
        record.address,
        record.listener,
        record.connection,
        record.detail,
    )
    return "\n".join(fields).casefold()


async def search(call: Call[AuditSearch, None]) -> AuditFound:
    query, client = call.query, call.client
    span = await _span(client)
    low, high = span
    if span.end:
        if query.since:
            low = max(low, (await client.find_offsets(AUDIT_TOPIC, as_start(query.since)))[0])
        if query.until:
            high = min(high, (await client.find_offsets(AUDIT_TOPIC, as_start(query.until)))[0])
    if query.before is not None:
        high = min(high, query.before)
    wanted, found = _AuditFilter(query), list[AuditRecord]()
    searched = unreadable = 0
    while high > low and len(found) < query.limit and searched < _SEARCHED_MAX:
        begin = max(low, high - _WINDOW)
        fitting, bad = list[AuditRecord](), list[_Read]()
        async for one in _read(call, begin, high):
            try:
                record = decode_record(one.value or b"")
            except FormatError:
                bad.append(one)
                continue
            if wanted.fits(record):
                fitting.append(record)
        fitting.reverse()
        room = query.limit - len(found)
        found += fitting[:room]
        reached = fitting[room - 1].seq if len(fitting) > room else begin
        unreadable += sum(one.next - one.seq for one in bad if one.seq >= reached)
        searched += high - reached
        high = reached
    return AuditFound(
        records=found,
        next=high if high > low else None,
        searched=searched,
        total=span.end - span.start,
        unreadable=unreadable,
    )


# Verification


async def verify(call: Call[VerifyQuery, None]) -> AuditCheck:
    query = call.query
    span = await _span(call.client)
    first, before = span.start, _maybe_head(query.after)
    if before is not None:
        # The last record is checked again, against its own hash.
        first = max(first, before.seq if before.hash else before.seq + 1)
    end = min(first + query.limit, span.end)
    at_end = end >= span.end
    heads = [parse_head(text) for text in query.head]
    anchors = [
        head
        for head in heads
        if first <= head.seq < end or (at_end and head.seq >= end) or (head.seq < span.start)
    ]
    again = before is not None and bool(before.hash) and before.seq == first
    check = ChainCheck(
        [*anchors, before] if again and before is not None else anchors,
        resumed=before is not None,
    )
    async for one in _read(call, first, end):
        if one.value is None:
            check.missing(one.seq, one.next, "are damaged on disk")
        else:
            check.take(one.seq, one.value)
    result = check.result()
    # Retention may have taken all of this part.
    reached = result.head if result.head.seq >= 0 else Head(end - 1, "")
    return _checked(result, span, again=again, next="" if at_end else str(reached))


def _checked(result: AuditCheckResult, span: _Span, *, again: bool, next: str) -> AuditCheck:
    return AuditCheck(
        ok=result.ok,
        records=max(0, result.records - again),
        first=result.first,
        last=result.head.seq,
        oldest=span.start,
        newest=span.end - 1,
        head=str(result.head),
        faults=list(result.faults),
        faults_count=result.faults_count,
        remarks=list(result.remarks),
        next=next,
    )


def _maybe_head(text: str) -> Head | None:
    if not text:
        return None
    seq, _, found = text.partition(":")
    return Head(int(seq), found)


ROUTES = [
    Route(
        "GET",
        "/v1/audit/search",
        search,
        "Search the audit log, newest records first",
        "operations",
        query=AuditSearch,
        query_example={"action": "topic.*", "result": "ok"},
        answer=AuditFound,
        errors=(ForbiddenError, InvalidArgumentError, NotSupportedError),
        verb=Verb.ADMIN,
    ),
    Route(
        "GET",
        "/v1/audit/verify",
        verify,
        "Check that nobody has changed the audit log",
        "operations",
        query=VerifyQuery,
        answer=AuditCheck,
        description="Checks a part of the log, as `fanlog audit verify` does. The answer says "
        "where the next part begins.",
        errors=(ForbiddenError, InvalidArgumentError, NotSupportedError),
        verb=Verb.ADMIN,
    ),
]
