"""Operations of `fanlog bench stalls` with measured steps on one topic with very many partitions:
what clients do with it from its creation to its deletion.

Law: as in `operations.py`.
"""

from __future__ import annotations

from fanlog.bench.operations import (
    Operation,
    Scale,
    ask_many,
    create,
    delete,
    nothing,
    opened,
    with_client,
)
from fanlog.client.aio import Client
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.messages import CommitOffsets, Position
from fanlog.model import PARTITIONS_MAX, Start

BROAD = "broad"
IN_MEMORY = "broad.memory"
GROWN = "broad.grown"
QUEUE = "broad.queue"
GROUP = "broad.group"


def _partitions(scale: Scale) -> int:
    return min(scale.wide, PARTITIONS_MAX)


def create_broad(port: int, scale: Scale) -> None:
    create(port, BROAD, partitions=_partitions(scale))


def describe_topic(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.describe_topic(BROAD))


def open_queue(port: int, scale: Scale) -> None:
    async def work(client: Client) -> None:
        async with client.work(BROAD, queue=QUEUE):
            pass

    with_client(port, work)


def reset_queue(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.reset(QUEUE, Start("earliest")))


def describe_queue(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.describe(QUEUE))


def join(port: int, scale: Scale) -> None:
    async def consume(client: Client) -> None:
        async with client.consume(BROAD, group=GROUP):
            pass

    with_client(port, consume)


def commit(port: int, scale: Scale) -> None:
    """One frame, as of a member that has read a little of everything."""
    positions = tuple(Position(BROAD, index, 0) for index in range(_partitions(scale)))
    with opened(port) as sock:
        wanted = CommitOffsets("broad reader", positions)
        ask_many(sock, [message_frame(FrameKind.COMMIT, wanted, request=1)])


def _publish(port: int, scale: Scale, topic: str) -> None:
    async def publish(client: Client) -> None:
        for partition in range(_partitions(scale)):
            await client.send(topic, b"x", partition=partition)
        await client.flush()

    with_client(port, publish)


def create_in_memory(port: int, scale: Scale) -> None:
    create(port, IN_MEMORY, durability="memory", partitions=_partitions(scale))


def publish_to_memory(port: int, scale: Scale) -> None:
    _publish(port, scale, IN_MEMORY)


def publish_first(port: int, scale: Scale) -> None:
    _publish(port, scale, BROAD)


def create_small(port: int, scale: Scale) -> None:
    create(port, GROWN)


def grow(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.grow_topic(GROWN, _partitions(scale)))


def delete_grown(port: int, scale: Scale) -> None:
    delete(port, GROWN)


def delete_broad(port: int, scale: Scale) -> None:
    delete(port, BROAD)


WIDE = (
    Operation("create {scale.wide:,} partitions", nothing, create_broad),
    Operation("describe {scale.wide:,} partitions", nothing, describe_topic),
    Operation("open a queue on {scale.wide:,} partitions", nothing, open_queue),
    Operation("reset a queue on {scale.wide:,} partitions", nothing, reset_queue),
    Operation("describe a queue on {scale.wide:,} partitions", nothing, describe_queue),
    Operation("join a group on {scale.wide:,} partitions", nothing, join),
    Operation("commit {scale.wide:,} positions in one frame", nothing, commit),
    Operation(
        "publish to {scale.wide:,} partitions in memory", create_in_memory, publish_to_memory
    ),
    Operation("publish first to {scale.wide:,} partitions on disk", nothing, publish_first),
    Operation("grow to {scale.wide:,} partitions", create_small, grow),
    Operation("delete {scale.wide:,} partitions", nothing, delete_grown),
    Operation("delete {scale.wide:,} partitions with messages and a queue", nothing, delete_broad),
)
