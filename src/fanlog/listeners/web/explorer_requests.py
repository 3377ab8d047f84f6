"""What the requests of the explorer share: their topics, recently used patterns, and limits on
concurrent scans."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta

from fanlog.errors import (
    InvalidArgumentError,
    InvalidNameError,
    LimitError,
    NotSupportedError,
    OverloadedError,
    PartitionNotFoundError,
    StorageError,
    TopicDeletedError,
    TopicNotFoundError,
)
from fanlog.listeners.web.explorer_scan import ExplorerScan
from fanlog.listeners.web.explorer_topics import TARGETS_MAX, ExploredTopics
from fanlog.listeners.web.openapi_names import TARGET_SCHEMA
from fanlog.listeners.web.routes import Call
from fanlog.model import PARTITIONS_MAX

if TYPE_CHECKING:
    from fanlog.broker.broker_core import BrokerCore

# Scans that may run, and that may wait, at the same time.
_SCANS_MAX = 2
_WAITING_MAX = 64
# Answers computed at the same time, cached answers, and for how long.
_FINDING_MAX = 2
_SHARED_MAX = 32
_SHARED_SECONDS = 3.0

Answered = TypeVar("Answered")

Target = Annotated[str, Meta(extra_json_schema=TARGET_SCHEMA)]

ERRORS = (
    InvalidArgumentError,
    InvalidNameError,
    TopicNotFoundError,
    TopicDeletedError,
    PartitionNotFoundError,
    LimitError,
    OverloadedError,
    StorageError,
    NotSupportedError,
)


class ExploredQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which topics, and which of their partitions."""

    topic: Annotated[
        list[Target],
        Meta(
            min_length=1,
            max_length=TARGETS_MAX,
            description="A topic, or a pattern such as orders.*. It may be repeated. A pattern "
            "leaves out topics that you may not read.",
            examples=[["orders"]],
        ),
    ]
    partition: Annotated[
        list[Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]],
        Meta(max_length=64, description="Only this partition. It may be repeated."),
    ] = []


class Explorer:
    """What the requests of one listener share: patterns, and the limits on scans."""

    def __init__(self, core: BrokerCore) -> None:
        self.topics = ExploredTopics(core)
        self._shared: OrderedDict[Hashable, tuple[float, asyncio.Future[Any]]] = OrderedDict()
        self._room = asyncio.Semaphore(_SCANS_MAX)
        self._finding = asyncio.Semaphore(_FINDING_MAX)
        self._waiting = 0

    async def run(self, scan: ExplorerScan) -> None:
        if self._waiting >= _WAITING_MAX:
            raise OverloadedError(
                f"{self._waiting} requests already wait to search messages, which is the limit. "
                "Try again in a few seconds."
            )
        self._waiting += 1
        try:
            await self._room.acquire()
        finally:
            self._waiting -= 1
        try:
            await scan.run()
        finally:
            self._room.release()

    async def shared(
        self, key: Hashable, find: Callable[[], Coroutine[Any, Any, Answered]]
    ) -> Answered:
        """An expensive answer. Equal requests within a few seconds share it."""
        now = asyncio.get_running_loop().time()
        known = self._shared.get(key)
        if known is None or known[0] < now or _has_failed(known[1]):
            known = (now + _SHARED_SECONDS, asyncio.ensure_future(self._find(find)))
            self._shared[key] = known
            self._shared.move_to_end(key)
            while len(self._shared) > _SHARED_MAX:
                self._shared.popitem(last=False)
        # A cancelled request does not stop it for the others.
        return await asyncio.shield(known[1])

    async def _find(self, find: Callable[[], Coroutine[Any, Any, Answered]]) -> Answered:
        async with self._finding:
            return await find()


def _has_failed(task: asyncio.Future[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


_explorers: WeakKeyDictionary[BrokerCore, Explorer] = WeakKeyDictionary()


def explorer_of(call: Call[Any, Any]) -> Explorer:
    if not call.bus.is_broker:
        raise NotSupportedError(
            "An edge can't search messages, because it has no log. Ask the broker behind it."
        )
    core = call.bus.core
    found = _explorers.get(core)
    if found is None:
        found = _explorers[core] = Explorer(core)
    return found
