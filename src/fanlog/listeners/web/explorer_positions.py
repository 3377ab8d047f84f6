"""Where a request of the explorer begins, and the format of its positions: an offset for each
partition, by the number of the topic, such as `7:0.42,1.40;9:0.3`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fanlog.broker.insight.stretches import OffsetGap
from fanlog.client.arguments import as_start
from fanlog.errors import InvalidArgumentError
from fanlog.listeners.web.explorer_look import Reach
from fanlog.model import Start

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.broker.messages.topics import Partition

TOKEN_LENGTH_MAX = 24_000
_ENTRY = r"[0-9]{1,4}\.[0-9]{1,18}"
_PART = rf"[0-9]{{1,10}}:{_ENTRY}(,{_ENTRY})*"
# Empty: of an answer about no topic.
TOKEN_PATTERN = rf"^({_PART}(;{_PART})*)?$"
_TOKEN_PART = re.compile(r"([0-9]{1,10}):([0-9.,]+)", re.ASCII)
_TOKEN_ENTRY = re.compile(r"([0-9]{1,4})\.([0-9]{1,18})", re.ASCII)
# Partitions in which a time is searched at the same time.
_SEARCHES_MAX = 8


class RequestedStart(NamedTuple):
    """The start that a request asks for: after the last answer, at a position, or at a start."""

    after: str | None
    position: str | None
    start: str
    backward: bool


class Began(NamedTuple):
    """The partitions with their ranges, and what was lost since the position."""

    reaches: list[Reach]
    gaps: list[tuple[Reach, OffsetGap]]


async def begin(core: BrokerCore, given: RequestedStart, partitions: list[Partition]) -> Began:
    """The start of each partition."""
    if given.after is not None:
        return _since(parse_token(given.after), partitions)
    backward = given.backward
    if given.position is not None:
        return _continued(parse_token(given.position), partitions, backward=backward)
    start = as_start(given.start or ("latest" if backward else "earliest"))
    if start.kind == "time":
        room = asyncio.Semaphore(_SEARCHES_MAX)

        async def find(partition: Partition) -> int:
            async with room:
                return await core.reading.find_offset(partition, start)

        offsets = await asyncio.gather(*map(find, partitions))
    else:
        offsets = [_offset(partition, start, backward=backward) for partition in partitions]
    both = zip(partitions, offsets, strict=True)
    return Began([_reach(p, offset, backward=backward) for p, offset in both], [])


def _offset(partition: Partition, start: Start, *, backward: bool) -> int:
    if start.kind == "earliest":
        return partition.log.start_offset
    if start.kind == "offset":
        return start.value + backward
    return partition.visible_end


def _reach(partition: Partition, offset: int, *, backward: bool) -> Reach:
    """The range of a partition to search from an offset, in a direction."""
    end = partition.visible_end
    low = min(partition.log.start_offset, end)
    if backward:
        return Reach(partition, low, min(max(offset, low), end), partition.last_time_us)
    return Reach(partition, min(max(offset, low), end), end, 0)


def _continued(
    token: Mapping[tuple[int, int], int], partitions: list[Partition], *, backward: bool
) -> Began:
    """Backwards, a partition missing in the token is finished or newer than the token. Forwards, it
    is newer, and is read from its start."""
    began = Began([], [])
    for partition in partitions:
        start, end = partition.log.start_offset, partition.visible_end
        given = token.get((partition.topic.number, partition.index))
        reach = _reach(partition, start if given is None else given, backward=backward)
        began.reaches.append(reach)
        if given is None or backward:
            continue
        if given < start:
            began.gaps.append((reach, OffsetGap(given, start, "retention")))
        elif given > end:
            reach.low = reach.begin = min(start, end)
            began.gaps.append((reach, OffsetGap(end, given, "reset")))
    return began


def _since(token: Mapping[tuple[int, int], int], partitions: list[Partition]) -> Began:
    """Everything since the token. A partition missing in it is new."""
    began = Began([], [])
    for partition in partitions:
        end = partition.visible_end
        start = min(partition.log.start_offset, end)
        given = token.get((partition.topic.number, partition.index), 0)
        low = given if start <= given <= end else start
        reach = Reach(partition, low, end, partition.last_time_us)
        began.reaches.append(reach)
        if 0 < given < start:
            began.gaps.append((reach, OffsetGap(given, start, "retention")))
        elif given > end:
            began.gaps.append((reach, OffsetGap(end, given, "reset")))
    return began


def print_token(positions: Iterable[tuple[Partition, int]]) -> str:
    """Positions in partitions, by the number of their topic: `7:0.42,1.40;9:0.3`."""
    topics: dict[int, list[str]] = {}
    for partition, offset in positions:
        topics.setdefault(partition.topic.number, []).append(f"{partition.index}.{offset}")
    return ";".join(f"{number}:{','.join(entries)}" for number, entries in topics.items())


def parse_token(text: str) -> dict[tuple[int, int], int]:
    """
    >>> parse_token("7:0.42,1.40;9:0.3")
    {(7, 0): 42, (7, 1): 40, (9, 0): 3}
    """
    found: dict[tuple[int, int], int] = {}
    for part in text.split(";") if text else ():
        whole = _TOKEN_PART.fullmatch(part)
        if whole is None:
            raise _bad(text)
        for entry in whole[2].split(","):
            fields = _TOKEN_ENTRY.fullmatch(entry)
            if fields is None:
                raise _bad(text)
            found[int(whole[1]), int(fields[1])] = int(fields[2])
    return found


def _bad(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text[:80]!r} is not a position. Use the `next` or `after` of an answer, unchanged."
    )
