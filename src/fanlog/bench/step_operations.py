"""What `fanlog bench stalls` makes a broker do while its steps are measured: operations on very
many partitions, positions, dead letters or connections.

Law: as in `operations.py`.
"""

from __future__ import annotations

import socket
import time

from fanlog.bench.environment import raise_open_files_limit
from fanlog.bench.operations import Operation, Scale, create, describe, nothing, opened, with_client
from fanlog.client.aio import Client
from fanlog.model import PARTITIONS_MAX, Start

# A sweep goes over all connections once a second.
SWEEPS_S = 3.0

GROUP = "large"
EARLIEST = Start("earliest")

_connections: list[socket.socket] = []


def publish_everywhere(port: int, scale: Scale) -> None:
    """A topic with a message in each partition."""
    create(port, "wide", durability="memory", partitions=min(scale.wide, PARTITIONS_MAX))

    async def publish(client: Client) -> None:
        for partition in range(min(scale.wide, PARTITIONS_MAX)):
            await client.send("wide", b"x", partition=partition)
        await client.flush()

    with_client(port, publish)


def truncate(port: int, scale: Scale) -> None:
    ends = {at.partition: at.visible_end for at in describe(port, "wide").partitions}
    with_client(port, lambda client: client.delete_records("wide", ends))


def commit_group(port: int, scale: Scale) -> None:
    """A group with positions in two topics."""
    for name in ("grouped.a", "grouped.b"):
        create(port, name, durability="memory", partitions=scale.group_positions // 2)
        with_client(port, lambda client, name=name: client.groups.reset(GROUP, EARLIEST, name))


def reset_group(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.reset(GROUP, EARLIEST))


def delete_group(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.delete(GROUP))


def write_dead_letters(port: int, scale: Scale) -> None:
    """Jobs that their queue has given up."""

    async def reject(client: Client) -> None:
        await client.create_topic("jobs", durability="memory")
        for _ in range(scale.dead_letters):
            await client.send("jobs", b"x")
        await client.flush()
        done = 0
        async with client.work("jobs", queue="failing") as worker:
            async for job in worker:
                await job.reject("for the benchmark")
                done += 1
                if done == scale.dead_letters:
                    return

    with_client(port, reject)


def replay(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.dead_letters.replay("dead.jobs"))


def open_connections(port: int, scale: Scale) -> None:
    """As many as were asked for. They stay open until this process ends."""
    raise_open_files_limit(scale.connections + 1000)
    _connections.extend(opened(port) for _ in range(scale.connections))


def wait_for_sweeps(port: int, scale: Scale) -> None:
    time.sleep(SWEEPS_S)


STEPS = (
    Operation("truncate {scale.wide:,} partitions", publish_everywhere, truncate),
    Operation("reset a group with {scale.group_positions:,} positions", commit_group, reset_group),
    Operation(
        "delete a group with {scale.group_positions:,} positions",
        nothing,
        delete_group,
    ),
    Operation("replay {scale.dead_letters:,} dead letters", write_dead_letters, replay),
    Operation("sweep {scale.connections:,} connections", open_connections, wait_for_sweeps),
)
