"""Dead letters over REST, for people: groups of reasons, pages of those that match a condition, one
in full, and all as a file. No request reads a topic twice: see `dead_index.py`."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
from aiohttp import web
from msgspec import Meta

from fanlog.errors import (
    DeadLetterNotFoundError,
    FanlogError,
    InvalidArgumentError,
    LimitError,
    TopicNotFoundError,
)
from fanlog.identity import Verb
from fanlog.listeners.web.dead_answers import (
    BrowseQuery,
    DeadLetterCondition,
    DeadLetterOrigin,
    DeadLetterPage,
    Preview,
    Reason,
    Reasons,
    preview_of,
)
from fanlog.listeners.web.dead_index import PATIENCE_SECONDS
from fanlog.listeners.web.dead_reading import read_letters
from fanlog.listeners.web.dead_reasons import error_of
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.sorted_pages import page_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from fanlog.broker.broker_core import BrokerCore
    from fanlog.client.dead_letters import DeadLetter
    from fanlog.listeners.web.dead_index import DeadLetterIndex
    from fanlog.listeners.web.dead_table import DeadLetterGroup, LetterTable

ERRORS = (InvalidArgumentError, TopicNotFoundError)
ERRORS_OF_ONE = (*ERRORS, DeadLetterNotFoundError)
NDJSON = "application/x-ndjson"
# Exports that run at the same time.
_EXPORTS_MAX = 4
# A client that reads nothing for this long is disconnected.
_SEND_SECONDS = 60.0
_ORIGINS_MAX = 500


class ReasonsQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: Annotated[
        int, Meta(ge=1, le=2000, description="The largest number of reasons in the answer.")
    ] = 100


def index_of(call: Call[Any, Any], topic: str) -> DeadLetterIndex:
    """What is known about a topic's dead letters."""
    return call.listener.dead_letters.of(call.broker.catalog.get(topic, creatable=False))


async def reasons(call: Call[ReasonsQuery, None]) -> Reasons:
    topic, broker = call.path("topic"), call.broker
    call.permit.ask(Verb.SUBSCRIBE, topic)
    index = index_of(call, topic)
    complete = await index.ready(PATIENCE_SECONDS)
    table = index.table
    async for _ in broker.slices.each(table.freshen()):
        pass
    groups = [group for group in table.group_list if group.count]
    first = await page_of(
        broker.slices,
        groups,
        lambda group: (group.count, group.last_us, group.number),
        offset=0,
        limit=call.query.limit,
        descending=True,
    )
    done, total = index.progress
    return Reasons(
        reasons=[_reason(table, group) for group in first],
        origins=await _origins(broker, table),
        groups=len(groups),
        total=table.count,
        complete=complete,
        looked_at=done,
        records=total,
    )


def _reason(table: LetterTable, group: DeadLetterGroup) -> Reason:
    return Reason(
        group=group.title,
        error=error_of(group.title),
        count=group.count,
        first=moment(group.first_us),
        last=moment(group.last_us),
        example=table.id(group.example),
    )


async def _origins(broker: BrokerCore, table: LetterTable) -> list[DeadLetterOrigin]:
    numbers = [number for number, count in enumerate(table.source_counts) if count]
    first = await page_of(
        broker.slices,
        numbers,
        lambda number: (table.source_counts[number], -number),
        offset=0,
        limit=_ORIGINS_MAX,
        descending=True,
    )
    return [
        DeadLetterOrigin(
            topic=table.source_list[number].topic,
            queue=table.source_list[number].queue,
            count=table.source_counts[number],
        )
        for number in first
    ]


def moment(us: int) -> dt.datetime:
    """A time as a date. A time out of range becomes the nearest date."""
    try:
        return dt.datetime.fromtimestamp(us / 1e6, tz=dt.UTC)
    except (OverflowError, ValueError, OSError):
        return (dt.datetime.max if us > 0 else dt.datetime.min).replace(tzinfo=dt.UTC)


async def browse(call: Call[BrowseQuery, None]) -> DeadLetterPage:
    query, topic, broker = call.query, call.path("topic"), call.broker
    call.permit.ask(Verb.SUBSCRIBE, topic)
    index = index_of(call, topic)
    limit = min(query.limit, call.listener.options.page_entries_max)
    match, complete = await index.match(query.wanted(), PATIENCE_SECONDS)
    table, rows = index.table, match.rows
    newest = query.order == "newest"
    if len(index.topic.partitions) == 1:
        # They are in the order of the log, which is the order in which they died.
        shown = _slice(rows, query.offset, limit, backwards=newest)
    else:
        shown = await page_of(
            broker.slices,
            rows,
            lambda row: (table.died_us[row], row),
            offset=query.offset,
            limit=limit,
            descending=newest,
        )
    positions = [table.position(row) for row in shown]
    found: dict[str, Preview] = {}
    async for letters in read_letters(broker, index.topic, sorted(positions)):
        found |= {letter.id: preview_of(letter) for letter in letters}
    ids = [f"{partition}:{offset}" for partition, offset in positions]
    done, total = index.progress
    if done >= total and not complete:
        # The topic has been read. Now search it.
        done, total = match.seen, len(table)
    return DeadLetterPage(
        letters=[found[id] for id in ids if id in found],
        total=len(rows),
        complete=complete,
        looked_at=done,
        records=total,
    )


def _slice(rows: Sequence[int], offset: int, limit: int, *, backwards: bool) -> list[int]:
    if not backwards:
        return list(rows[offset : offset + limit])
    end = max(0, len(rows) - offset)
    return list(rows[max(0, end - limit) : end])[::-1]


async def export(call: Call[DeadLetterCondition, None]) -> web.StreamResponse:
    topic, broker, request = call.path("topic"), call.broker, call.request
    call.permit.ask(Verb.SUBSCRIBE, topic)
    index = index_of(call, topic)
    wanted = call.query.wanted()
    with _exporting(call):
        positions = await index.positions(wanted)
        name = quote(f"{topic}.ndjson", safe="")
        response = web.StreamResponse(
            headers={
                "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
                "Cache-Control": "no-store",
            }
        )
        response.content_type = NDJSON
        await response.prepare(request)
        try:
            for some in positions.some():
                async for letters in read_letters(broker, index.topic, some):
                    lines = [_line(letter) async for letter in broker.slices.each(letters)]
                    async with asyncio.timeout(_SEND_SECONDS):
                        await response.write(b"".join(lines))
        except (FanlogError, TimeoutError):
            # An incomplete file must not look complete.
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
    return response


def _line(letter: DeadLetter) -> bytes:
    return msgspec.json.encode(letter.document()) + b"\n"


@contextmanager
def _exporting(call: Call[Any, Any]) -> Generator[None]:
    letters = call.listener.dead_letters
    if letters.exports >= _EXPORTS_MAX:
        raise LimitError(
            f"{letters.exports} exports of dead letters are running. Try again when one of them "
            "ends."
        )
    letters.exports += 1
    try:
        yield
    finally:
        letters.exports -= 1


ROUTES = [
    Route(
        "GET",
        "/v1/dead-letters/{topic}/reasons",
        reasons,
        "Group dead letters by reason",
        "dead letters",
        query=ReasonsQuery,
        answer=Reasons,
        description="Reasons that differ only in numbers and ids are one group. The broker "
        "reads the topic for the first request. An answer that is not `complete` "
        "has what is known after a second, and the next answer has more.",
        errors=(*ERRORS, LimitError),
    ),
    Route(
        "GET",
        "/v1/dead-letters/{topic}/browse",
        browse,
        "Page through dead letters",
        "dead letters",
        query=BrowseQuery,
        answer=DeadLetterPage,
        description="A page of the dead letters that match a condition, with the beginning of "
        "their values and their total number. An answer that is not `complete` has "
        "what is known after a second.",
        errors=(*ERRORS, LimitError),
    ),
    Route(
        "GET",
        "/v1/dead-letters/{topic}/export",
        export,
        "Export dead letters",
        "dead letters",
        query=DeadLetterCondition,
        answer=str,
        answer_type=NDJSON,
        description="The dead letters that match a condition, each as a line of JSON, "
        "oldest first.",
        errors=(*ERRORS, LimitError),
    ),
]
