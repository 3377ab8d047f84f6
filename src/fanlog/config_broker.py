"""The settings of the broker itself: a limit on everything that peers can make it hold."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.config_live import LIVE
from fanlog.model import KIB, MIB


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the broker."""

    auto_create_topics: Annotated[
        bool, Meta(description="Create a topic with the first message to it.")
    ] = True
    topics_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Topics on this broker. The broker refuses one more. Internal topics do "
            "not count.",
        ),
    ] = 1_000_000
    producers_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Producers remembered for each topic partition. Above it, the broker "
            "forgets the one that was idle longest.",
        ),
    ] = 10_000
    producer_runs_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Sequence ranges remembered for each producer. The broker finds "
            "repeated messages in them.",
        ),
    ] = 128
    producer_idle_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="The broker forgets a producer, or a producer name, that was idle for "
            "this long.",
        ),
    ] = 7 * 24 * 3600
    producer_names_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Named producers. The broker refuses one more.")
    ] = 100_000
    groups_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Consumer groups with members. The broker refuses one more.",
        ),
    ] = 10_000
    group_members_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Members of one consumer group. The broker refuses one more.",
        ),
    ] = 1000
    session_seconds_min: Annotated[
        float,
        Meta(
            extra=LIVE,
            gt=0,
            description="Shortest session timeout that a group member may ask for.",
        ),
    ] = 0.1
    session_seconds_max: Annotated[
        float,
        Meta(
            extra=LIVE, gt=0, description="Longest session timeout that a group member may ask for."
        ),
    ] = 3600.0
    revoke_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Time that a group member has to release a partition in a rebalance. "
            "After that the broker takes it away.",
        ),
    ] = 30.0
    group_grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="After a start, groups wait this long for their earlier members "
            "before they rebalance.",
        ),
    ] = 2.0
    durable_positions_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Committed offsets of durable names and groups. Each topic partition "
            "counts as one.",
        ),
    ] = 1_000_000
    view_cache_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            description="Memory for messages that were rendered for Redis and web clients. Readers "
            "that are behind share them.",
        ),
    ] = 16 * MIB
    queues_max: Annotated[
        int,
        Meta(extra=LIVE, ge=1, description="Queues on this broker. The broker refuses one more."),
    ] = 10_000
    queue_workers_max: Annotated[
        int,
        Meta(extra=LIVE, ge=1, description="Workers of one queue. The broker refuses one more."),
    ] = 10_000
    queue_prefetch_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Jobs that one worker may hold at a time.")
    ] = 100_000
    queue_outcomes_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Outcomes (ack, nack or reject) in one frame.")
    ] = 8192
    queue_in_flight_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Jobs of one queue that workers hold. Above it, the broker hands out "
            "no new jobs.",
        ),
    ] = 1_000_000
    queue_ranges_max: Annotated[
        int,
        Meta(
            ge=16,
            description="Ranges of jobs tracked for each queue partition. Above it, the "
            "oldest jobs must finish before new ones go out.",
        ),
    ] = 20_000
    queue_priority_runs_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Runs of urgent jobs that a queue partition tracks ahead. Jobs behind "
            "them have no priority until the queue has handed out some of these.",
        ),
    ] = 100_000
    queue_parked_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Jobs of an ordered queue partition that wait behind an earlier job "
            "with the same key.",
        ),
    ] = 10_000
    inbox_idle_seconds: Annotated[
        int,
        Meta(
            ge=1, description="The broker deletes a reply inbox that nobody has read for this long."
        ),
    ] = 60
    drops_pending_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Losses recorded in one second, one record each. Above it, losses "
            "share a record.",
        ),
    ] = 1000
    drops_retention_seconds: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=0,
            description="How long to keep the records of messages that readers missed. The "
            "default lets you look back a month.",
        ),
    ] = 30 * 24 * 3600
    drops_retention_bytes: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=64 * KIB,
            description="Size limit of the records of messages that readers missed. The "
            "default holds several hundred thousand.",
        ),
    ] = 64 * MIB
    fetch_memory_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Memory for fetch answers that clients have not read yet, over all "
            "connections. Above it, new fetches wait.",
        ),
    ] = 256 * MIB
    fetch_stall_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="While fetches wait for memory, the broker disconnects a client that "
            "left answers unread for this long.",
        ),
    ] = 30.0
    pending_bytes_pause: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=64 * KIB,
            description="Bytes waiting for the disk. Above it, the broker stops reading from "
            "publishers until the disk catches up.",
        ),
    ] = 64 * MIB
    pending_bytes_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=64 * KIB,
            description="Bytes waiting for the disk. Above it, publishing fails.",
        ),
    ] = 256 * MIB
    batch_unpacked_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=256 * MIB,
            description="Largest unpacked size of a compressed batch. The default is what "
            "frame_bytes_max allows without compression.",
        ),
    ] = 16 * MIB
    compression_ratio_max: Annotated[
        int,
        Meta(
            ge=2,
            description="Highest ratio of unpacked to packed bytes in a batch that unpacks to "
            "more than 1 MiB. Real data stays far below it; a decompression bomb "
            "does not.",
        ),
    ] = 1000
    unpack_loop_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes that the event loop may unpack at once. A thread unpacks "
            "larger batches.",
        ),
    ] = 256 * KIB
    unpack_thread_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            description="Bytes that threads may unpack at the same time. It limits their memory.",
        ),
    ] = 64 * MIB
    transactions_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Open transactions. The broker refuses one more.")
    ] = 10_000
    transaction_bytes_max: Annotated[
        int, Meta(extra=LIVE, ge=64 * KIB, description="Bytes that one transaction may stage.")
    ] = 16 * 1024 * MIB
    transaction_memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Staged bytes that one transaction may hold in memory. Above it, the "
            "transaction uses a file.",
        ),
    ] = 1 * MIB
    transaction_memory_total_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Staged bytes of all transactions in memory. Above it, transactions "
            "use files sooner.",
        ),
    ] = 256 * MIB
    transaction_files_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Open transactions that use a file. The broker refuses one more. At "
            "most one quarter of reserved_files.",
        ),
    ] = 1024
    transaction_stagers_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Clients that stage messages into one transaction.")
    ] = 10_000
    transaction_timeout_seconds_max: Annotated[
        float, Meta(extra=LIVE, gt=0, description="Longest timeout that a transaction may ask for.")
    ] = 86_400.0
    transaction_ids_seconds: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="How long the broker remembers the id of a committed transaction, and "
            "ignores a repeat.",
        ),
    ] = 7 * 24 * 3600
    scheduled_max: Annotated[
        int,
        Meta(
            extra=LIVE, ge=1, description="Delayed messages that wait. The broker refuses one more."
        ),
    ] = 5_000_000
    scheduled_bytes_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1 * MIB,
            description="Disk space of delayed messages. Above it, the broker refuses new ones.",
        ),
    ] = 64 * 1024 * MIB
    scheduled_cache_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            description="Memory for delayed messages that are due within seconds.",
        ),
    ] = 32 * MIB
    schedule_seconds_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Longest delay of a message.")
    ] = 10 * 366 * 24 * 3600
    schedules_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Schedules. The broker refuses one more.")
    ] = 10_000
    transaction_ids_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Ids of committed transactions remembered. Above it, the broker forgets "
            "the oldest.",
        ),
    ] = 1_000_000
