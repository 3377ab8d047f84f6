"""Operations of `fanlog bench stalls` with measured steps: operations on very
many partitions, positions, dead letters or connections.

Law: as in `operations.py`.
"""

from __future__ import annotations

import socket
import time

from fanlog.bench.environment import raise_open_files_limit
from fanlog.bench.operations import (
    WAIT_TIMEOUT_S,
    Operation,
    Scale,
    create,
    describe,
    nothing,
    opened,
    with_client,
)
from fanlog.bench.systems import HOST
from fanlog.bench.wide_operations import WIDE
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


def alter(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.alter_topic("wide", retention_seconds=3600))


def commit_group(port: int, scale: Scale) -> None:
    """A group with positions in several topics."""
    topics = max(2, scale.group_positions // PARTITIONS_MAX)
    for name in (f"grouped.{number}" for number in range(topics)):
        create(port, name, durability="memory", partitions=scale.group_positions // topics)
        with_client(port, lambda client, name=name: client.groups.reset(GROUP, EARLIEST, name))


def reset_group(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.reset(GROUP, EARLIEST))


def describe_group(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.describe(GROUP))


def delete_group(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.groups.delete(GROUP))


def make_following_groups(port: int, scale: Scale) -> None:
    """Groups with a position in the one partition of a topic."""
    create(port, "followed", durability="fsync")

    async def begin(client: Client) -> None:
        for number in range(scale.following):
            await client.groups.reset(f"following.{number}", EARLIEST, "followed")

    with_client(port, begin)


def grow_followed(port: int, scale: Scale) -> None:
    with_client(port, lambda client: client.grow_topic("followed", scale.partitions))


def write_dead_letters(port: int, scale: Scale) -> None:
    """Rejects jobs, which become dead letters."""

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
    """Opens the requested number. They stay open until this process ends."""
    raise_open_files_limit(scale.connections + 1000)
    _connections.extend(opened(port) for _ in range(scale.connections))


def open_redis_connections(port: int, scale: Scale) -> None:
    """In exchange for those to the native port."""
    while _connections:
        _connections.pop().close()
    for _ in range(scale.connections):
        with socket.create_connection((HOST, port), timeout=WAIT_TIMEOUT_S) as sock:
            # Once it has answered it is served.
            sock.sendall(b"PING\r\n")
            sock.recv(64)
            _connections.append(socket.socket(fileno=sock.detach()))


def wait_for_sweeps(port: int, scale: Scale) -> None:
    time.sleep(SWEEPS_S)


# The broker does it on request: `measure` says how.
CLOSING = Operation("close {scale.connections:,} connections", open_redis_connections, nothing)
STEPS = (
    Operation("truncate {scale.wide:,} partitions", publish_everywhere, truncate),
    Operation("alter the retention of {scale.wide:,} partitions", nothing, alter),
    Operation("reset a group with {scale.group_positions:,} positions", commit_group, reset_group),
    Operation(
        "describe a group with {scale.group_positions:,} positions",
        nothing,
        describe_group,
    ),
    Operation(
        "delete a group with {scale.group_positions:,} positions",
        nothing,
        delete_group,
    ),
    Operation("replay {scale.dead_letters:,} dead letters", write_dead_letters, replay),
    Operation(
        "grow to {scale.partitions:,} partitions, {scale.following:,} groups",
        make_following_groups,
        grow_followed,
    ),
    *WIDE,
    Operation("sweep {scale.connections:,} connections", open_connections, wait_for_sweeps),
    CLOSING,
)
