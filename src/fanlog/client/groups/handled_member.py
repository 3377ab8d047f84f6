"""A member of a group whose messages go to handlers, several at a time.
`core/handled_partitions.py` decides; this waits, and moves the cursors of parked partitions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial

from fanlog.client.core.handled_partitions import (
    HandledMemberCore,
    HandledPartitions,
    ParkedPartition,
)
from fanlog.client.core.handling import Desk
from fanlog.client.core.member_core import followed
from fanlog.client.core.receiving import Receiving
from fanlog.client.groups.member import GroupMember, MemberHost
from fanlog.client.groups.options import MemberOptions
from fanlog.client.subscription import next_batch
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.model import Gap

logger = logging.getLogger("fanlog.client")


class HandledMember(GroupMember):
    """Made by `client.consume(topic, handler, ...)`."""

    def __init__(
        self,
        host: MemberHost,
        key: int,
        wanted: messages.JoinGroup,
        options: MemberOptions,
        desk: Desk,
    ) -> None:
        # A gap must not end a handler that runs without end: after a new start the gap would be
        # there again.
        options = replace(options, on_gap=options.on_gap or partial(_log_gap, wanted.group))
        self.desk = desk
        self.handled_partitions = HandledPartitions(
            host,
            Receiving(host, key, followed(wanted), options.on_gap),
            wanted,
            desk,
            commit=options.commit,
            announces=options.on_assign is not None,
        )
        core = HandledMemberCore(host, key, wanted, self.handled_partitions)
        super().__init__(host, core, options)
        self._parking: set[asyncio.Task[None]] = set()

    async def receive(self) -> None:
        """Waits for the next batch, and puts it on the desk."""
        await self.start()
        partitions = self.handled_partitions
        partitions.put_on_desk(await next_batch(partitions))

    def make_room(self) -> None:
        """A handler is idle: lets messages of other partitions come, if one holds them up."""
        parked = self.handled_partitions.maybe_park()
        if parked is not None:
            # At once: a message that is handled before the task begins may be the last one.
            settled = asyncio.Event()
            parked.on_change = settled.set
            task = asyncio.get_running_loop().create_task(self._park(parked, settled))
            self._parking.add(task)
            task.add_done_callback(self._parking.discard)
            parked.on_dropped = partial(_stop, task)

    async def _park(self, parked: ParkedPartition, settled: asyncio.Event) -> None:
        topic, partition = parked.partition
        try:
            await self._seek_now("latest", topic, partition)
            await settled.wait()
            if self.handled_partitions.may_return(parked):
                await self._seek_now(parked.offset, topic, partition)
        except FanlogError as fault:
            # The partition is gone, or the connection is: both say where it continues.
            logger.debug("Group %s could not park %s/%d: %s", self.group, topic, partition, fault)


def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()


def _log_gap(group: str, gap: Gap) -> None:
    logger.error(
        "Group %s misses the offsets %d to %d of %s/%d: %s",
        group,
        gap.first,
        gap.next - 1,
        gap.topic,
        gap.partition,
        gap.reason.value,
    )
