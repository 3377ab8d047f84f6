"""Every option and every limit of Fanlog: its name, its default, its range and its reason.

These are plain values. Reading them from a file, the environment or flags is the command line's
work (`fanlog.cli`); nothing below it looks anything up by itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.model import KIB, MIB, TopicSettings

NATIVE_PORT = 7420
REDIS_PORT = 7421
DEFAULT_HOST = "127.0.0.1"
DEFAULT_DATA = "fanlog-data"

Port = Annotated[int, Meta(ge=0, le=65535)]
SlowPolicyName = Literal["catch-up", "skip", "disconnect"]


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How logs are kept on disk and in memory."""

    segment_first_bytes: Annotated[
        int,
        Meta(ge=4 * KIB, description="First allocation of a segment; it doubles as it fills."),
    ] = 16 * KIB
    index_interval_bytes: Annotated[
        int, Meta(ge=1 * KIB, description="Log bytes between two entries of the sparse index.")
    ] = 32 * KIB
    read_block_bytes: Annotated[
        int, Meta(ge=64 * KIB, description="What a reader that catches up takes from disk at once.")
    ] = 1 * MIB
    fetch_block_bytes: Annotated[
        int, Meta(ge=64 * KIB, description="What one fetch that asks for much takes from disk.")
    ] = 4 * MIB
    read_cache_bytes: Annotated[
        int, Meta(ge=1 * MIB, description="Blocks read from disk, shared by readers that catch up.")
    ] = 64 * MIB
    index_cache_bytes: Annotated[
        int, Meta(ge=64 * KIB, description="Indexes of sealed segments that were used last.")
    ] = 64 * MIB
    journal_bytes: Annotated[
        int, Meta(ge=1 * MIB, description="Size of each of the two commit journals.")
    ] = 64 * MIB
    open_segments_max: Annotated[
        int, Meta(ge=16, description="Segment files kept open for writing.")
    ] = 2048
    reserve_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Disk space kept for deleting and starting on a full disk. A sixteenth of "
            "the disk at most.",
        ),
    ] = 8 * MIB
    reserved_files: Annotated[
        int,
        Meta(
            ge=32,
            description="File descriptors that no connection gets: the log's. Half the limit at "
            "most.",
        ),
    ] = 4096
    tail_total_bytes: Annotated[
        int, Meta(ge=1 * MIB, description="All tails together; past it the oldest bytes go first.")
    ] = 1024 * MIB
    retention_check_seconds: Annotated[
        float, Meta(gt=0, description="How often retention looks for what to delete.")
    ] = 30.0
    clock_trust_seconds: Annotated[
        float,
        Meta(
            ge=0, description="A wall clock that jumps forward deletes nothing by age for so long."
        ),
    ] = 3600.0
    compaction_keys_max: Annotated[
        int,
        Meta(ge=1, description="Keys that compaction holds in memory; past it, it takes rounds."),
    ] = 500_000


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker allows."""

    auto_create_topics: Annotated[
        bool, Meta(description="Create a topic when it is first published or subscribed to.")
    ] = True
    topics_max: Annotated[
        int, Meta(ge=1, description="Topics on this broker; one more is refused.")
    ] = 1_000_000
    producers_max: Annotated[
        int,
        Meta(
            ge=1, description="Producers remembered per partition; the longest idle is forgotten."
        ),
    ] = 10_000
    producer_runs_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Stretches of a producer's sequence that a repeat is found in.",
        ),
    ] = 128
    producer_idle_seconds: Annotated[
        int,
        Meta(
            ge=1, description="A producer, or its name, that was silent for so long is forgotten."
        ),
    ] = 7 * 24 * 3600
    producer_names_max: Annotated[
        int, Meta(ge=1, description="Named producers; one more is refused.")
    ] = 100_000
    groups_max: Annotated[
        int, Meta(ge=1, description="Consumer groups that have members; one more is refused.")
    ] = 10_000
    group_members_max: Annotated[
        int, Meta(ge=1, description="Members of one consumer group; one more is refused.")
    ] = 1000
    session_seconds_min: Annotated[
        float, Meta(gt=0, description="Shortest session of a group's member that was lost.")
    ] = 0.1
    session_seconds_max: Annotated[
        float, Meta(gt=0, description="Longest session of a group's member that was lost.")
    ] = 3600.0
    revoke_seconds: Annotated[
        float,
        Meta(gt=0, description="How long a group's member may take to let a partition go."),
    ] = 30.0
    group_grace_seconds: Annotated[
        float,
        Meta(ge=0, description="After a start, how long groups wait for those who were there."),
    ] = 2.0
    durable_positions_max: Annotated[
        int, Meta(ge=1, description="Positions of durable names, a partition each.")
    ] = 1_000_000
    view_cache_bytes: Annotated[
        int,
        Meta(ge=64 * KIB, description="Rendered views, shared by readers that are behind."),
    ] = 16 * MIB
    queues_max: Annotated[int, Meta(ge=1, description="Queues; one more is refused.")] = 10_000
    queue_workers_max: Annotated[
        int, Meta(ge=1, description="Workers of one queue; one more is refused.")
    ] = 10_000
    queue_prefetch_max: Annotated[
        int, Meta(ge=1, description="Jobs that one worker may have at a time.")
    ] = 100_000
    queue_verdicts_max: Annotated[
        int, Meta(ge=1, description="Verdicts on jobs that one frame may hold.")
    ] = 8192
    queue_in_flight_max: Annotated[
        int, Meta(ge=1, description="Jobs of a queue that are out; past it no new ones go out.")
    ] = 1_000_000
    queue_ranges_max: Annotated[
        int,
        Meta(ge=16, description="Stretches of jobs kept of a partition; then its oldest must end."),
    ] = 20_000
    queue_parked_max: Annotated[
        int,
        Meta(ge=1, description="Jobs of a partition set aside behind others of their key."),
    ] = 10_000
    inbox_idle_seconds: Annotated[
        int, Meta(ge=1, description="An inbox for replies that nobody reads goes after this.")
    ] = 60
    drops_pending_max: Annotated[
        int,
        Meta(ge=1, description="Readers' misses noted in a second; those past it share a record."),
    ] = 1000
    drops_retention_seconds: Annotated[
        int,
        Meta(ge=0, description="How long it is kept what readers missed: to look back a month."),
    ] = 30 * 24 * 3600
    drops_retention_bytes: Annotated[
        int,
        Meta(ge=64 * KIB, description="And how much of it: some hundred thousand records."),
    ] = 64 * MIB
    fetch_memory_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Answers to fetches that peers have not taken, of all connections; past "
            "it, fetches wait.",
        ),
    ] = 256 * MIB
    fetch_stall_seconds: Annotated[
        float,
        Meta(gt=0, description="Fetches wait: a peer that held answers for so long is cut off."),
    ] = 30.0
    pending_bytes_pause: Annotated[
        int,
        Meta(
            ge=64 * KIB, description="Bytes waiting for the disk past which sockets are not read."
        ),
    ] = 64 * MIB
    pending_bytes_max: Annotated[
        int,
        Meta(ge=64 * KIB, description="Bytes waiting for the disk past which publishing fails."),
    ] = 256 * MIB
    batch_unpacked_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=256 * MIB,
            description="What a compressed batch may unpack to; as much as frame_bytes_max lets "
            "through uncompressed.",
        ),
    ] = 16 * MIB
    compression_ratio_max: Annotated[
        int,
        Meta(
            ge=2,
            description="Unpacked bytes for each packed one, of a batch past 1 MiB: real data "
            "stays far below.",
        ),
    ] = 1000
    unpack_loop_bytes_max: Annotated[
        int,
        Meta(ge=0, description="Bytes unpacked at once on the loop; more go to a thread."),
    ] = 256 * KIB
    unpack_thread_bytes_max: Annotated[
        int,
        Meta(ge=64 * KIB, description="Bytes unpacked in threads at a time: their memory."),
    ] = 64 * MIB
    transactions_max: Annotated[
        int, Meta(ge=1, description="Transactions that are open; one more is refused.")
    ] = 10_000
    transaction_bytes_max: Annotated[
        int, Meta(ge=64 * KIB, description="What one transaction may stage.")
    ] = 16 * 1024 * MIB
    transaction_memory_bytes: Annotated[
        int, Meta(ge=0, description="Staged bytes past which a transaction goes to a file.")
    ] = 1 * MIB
    transaction_memory_total_bytes: Annotated[
        int, Meta(ge=0, description="All staged bytes in memory; past it, files are used sooner.")
    ] = 256 * MIB
    transaction_files_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Open transactions with a file each; one more is refused. A quarter of "
            "reserved_files at most.",
        ),
    ] = 1024
    transaction_stagers_max: Annotated[
        int, Meta(ge=1, description="Clients that stage into one transaction.")
    ] = 10_000
    transaction_timeout_seconds_max: Annotated[
        float, Meta(gt=0, description="Longest silence that a transaction may ask for.")
    ] = 86_400.0
    transaction_ids_seconds: Annotated[
        int, Meta(ge=1, description="How long the id of a committed transaction is remembered.")
    ] = 7 * 24 * 3600
    transaction_ids_max: Annotated[
        int, Meta(ge=1, description="Ids of committed transactions; past it the oldest go.")
    ] = 1_000_000


class ListenerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The network front: where it listens, and what a peer may cost."""

    host: Annotated[str, Meta(description="Address to listen on.")] = DEFAULT_HOST
    port: Annotated[int, Meta(ge=0, le=65535, description="Native port; 0 takes a free one.")] = (
        NATIVE_PORT
    )
    connections_max: Annotated[
        int, Meta(ge=1, description="Open connections; one more is told so and closed.")
    ] = 100_000
    hello_timeout_seconds: Annotated[
        float, Meta(gt=0, description="A connection that has not said hello by then is closed.")
    ] = 10.0
    idle_timeout_seconds: Annotated[
        float, Meta(gt=0, description="Silence past which a peer counts as gone; clients ping.")
    ] = 60.0
    frame_timeout_seconds: Annotated[
        float, Meta(gt=0, description="How long the rest of a begun frame may take.")
    ] = 30.0
    frame_bytes_max: Annotated[
        int, Meta(ge=64 * KIB, le=1024 * MIB, description="Longest frame taken from a peer.")
    ] = 16 * MIB
    receive_bytes: Annotated[
        int, Meta(ge=4 * KIB, description="Most bytes taken from a socket at once.")
    ] = 256 * KIB
    control_bytes_max: Annotated[
        int, Meta(ge=16 * KIB, description="Answers waiting for a peer past which it isn't read.")
    ] = 1 * MIB
    subscriptions_max: Annotated[
        int, Meta(ge=1, description="Subscriptions of one connection.")
    ] = 100_000
    requests_max: Annotated[
        int,
        Meta(ge=1, description="Requests of one connection under way; past it, it isn't read."),
    ] = 1024
    fetch_bytes_max: Annotated[
        int, Meta(ge=4 * KIB, description="Most log bytes in one answer to a fetch.")
    ] = 8 * MIB
    fetches_max: Annotated[
        int, Meta(ge=1, description="Fetches of one connection that wait for new records.")
    ] = 1024
    fetch_wait_seconds_max: Annotated[
        float, Meta(ge=0, description="Longest wait of a fetch for new records.")
    ] = 30.0
    drain_seconds: Annotated[
        float, Meta(ge=0, description="How long a stop waits for peers that are slow, in total.")
    ] = 10.0


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The Redis listener: where it listens, what a peer may cost, and how channels are kept."""

    host: Annotated[str, Meta(description="Address to listen on.")] = DEFAULT_HOST
    port: Annotated[
        int, Meta(ge=-1, le=65535, description="Redis port; 0 takes a free one, -1 is off.")
    ] = REDIS_PORT
    password: Annotated[
        str, Meta(description="What clients must give with AUTH; empty: nothing.")
    ] = ""
    connections_max: Annotated[
        int, Meta(ge=1, description="Open connections; one more is told so and closed.")
    ] = 100_000
    subscriptions_max: Annotated[
        int, Meta(ge=1, description="Channels and patterns of one connection.")
    ] = 100_000
    arguments_max: Annotated[int, Meta(ge=1024, description="Words of one command.")] = 1024 * 1024
    bulk_bytes_max: Annotated[
        int, Meta(ge=64 * KIB, le=64 * MIB, description="Longest word of a command, or message.")
    ] = 32 * MIB
    inline_bytes_max: Annotated[
        int, Meta(ge=1 * KIB, description="Longest line: an inline command, or a header.")
    ] = 64 * KIB
    request_bytes_max: Annotated[
        int,
        Meta(ge=128 * KIB, description="One command, or all that MULTI queues: a peer's memory."),
    ] = 64 * MIB
    pattern_bytes_max: Annotated[
        int, Meta(ge=1, description="Longest pattern: each is compiled, and matched to channels.")
    ] = 1024
    command_timeout_seconds: Annotated[
        float, Meta(gt=0, description="How long the rest of a begun command may take.")
    ] = 60.0
    slow_policy: Annotated[
        SlowPolicyName,
        Meta(description="What happens to a subscriber that falls behind its channel's tail."),
    ] = "skip"
    channel_tail_bytes: Annotated[
        int,
        Meta(ge=64 * KIB, description="Newest bytes of a channel: how far a subscriber may lag."),
    ] = 8 * MIB
    channel_retention_seconds: Annotated[
        int, Meta(ge=1, description="How long a channel's tail keeps a message.")
    ] = 3600
    channel_idle_seconds: Annotated[
        float,
        Meta(gt=0, description="A channel without messages for so long gives up its topic."),
    ] = 300.0


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client collects, waits and comes back."""

    name: Annotated[str, Meta(max_length=255, description="Shown by the broker.")] = ""
    producer: Annotated[
        str,
        Meta(max_length=255, description="Publish under this name; a second one fences the first."),
    ] = ""
    idempotent: Annotated[
        bool,
        Meta(
            description="Off: a message that is sent again after a lost connection may be stored "
            "twice."
        ),
    ] = True
    linger_ms: Annotated[
        float, Meta(ge=0, description="Wait for company before a batch is sent. 0: this loop turn.")
    ] = 0.0
    batch_bytes: Annotated[
        int, Meta(ge=1, le=16 * MIB, description="A batch is sent when it holds this much.")
    ] = 64 * KIB
    batch_records: Annotated[
        int, Meta(ge=1, le=1 << 20, description="A batch is sent when it holds so many records.")
    ] = 8192
    batches_in_flight: Annotated[
        int, Meta(ge=1, le=128, description="Unacknowledged batches of one partition.")
    ] = 16
    buffer_bytes_max: Annotated[
        int, Meta(ge=4 * KIB, description="Messages held until acknowledged; then send() waits.")
    ] = 32 * MIB
    window_bytes: Annotated[
        int, Meta(ge=4 * KIB, description="Log bytes on the way to one subscription.")
    ] = 4 * MIB
    batch_unpacked_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=256 * MIB,
            description="A batch that unpacks to more is not read: it is a gap.",
        ),
    ] = 128 * MIB
    compression: Annotated[
        str, Meta(description="none, zlib, zstd or lz4, where the topic leaves it to the producer.")
    ] = "none"
    wait_seconds: Annotated[
        float,
        Meta(ge=0, description="How long connect() tries again if no broker answers yet."),
    ] = 0.0
    connect_timeout_seconds: Annotated[
        float, Meta(gt=0, description="How long one try to connect may take.")
    ] = 5.0
    request_timeout_seconds: Annotated[
        float, Meta(gt=0, description="A request not answered by then fails as unknown.")
    ] = 30.0
    delivery_timeout_seconds: Annotated[
        float, Meta(gt=0, description="A publish not acknowledged by then fails as unknown.")
    ] = 120.0
    ping_seconds: Annotated[
        float, Meta(gt=0, description="Between two pings; after three without a word it is lost.")
    ] = 15.0
    reconnect: Annotated[bool, Meta(description="Come back by itself after a lost connection.")] = (
        True
    )
    backoff_first_seconds: Annotated[
        float, Meta(gt=0, description="Wait before the second try to come back; then doubled.")
    ] = 0.05
    backoff_max_seconds: Annotated[
        float, Meta(gt=0, description="Longest wait between two tries to come back.")
    ] = 5.0


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a Spark task takes and makes at once."""

    fetch_bytes: Annotated[
        int, Meta(ge=4 * KIB, description="Log bytes asked of the broker at once.")
    ] = 8 * MIB
    batch_unpacked_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=256 * MIB,
            description="A batch that unpacks to more is not read: it counts as lost.",
        ),
    ] = 128 * MIB
    rows_max: Annotated[
        int, Meta(ge=1, description="Rows of one Arrow batch that is made of several of the log's.")
    ] = 32_768
    rows_bytes: Annotated[
        int, Meta(ge=1, description="Unpacked bytes of such a batch: past it the next one begins.")
    ] = 4 * MIB
    stage_bytes: Annotated[
        int, Meta(ge=4 * KIB, description="A batch that a sink stages is about so large.")
    ] = 1 * MIB
    stages_in_flight: Annotated[
        int, Meta(ge=1, description="Frames of staged batches that wait for their answers.")
    ] = 4
    stage_rounds_max: Annotated[
        int,
        Meta(ge=1, description="New connections in a row on which no staged batch is answered."),
    ] = 10
    transaction_timeout_seconds: Annotated[
        float,
        Meta(gt=0, description="How long what a task has staged waits for the driver's commit."),
    ] = 3600.0
    commit_timeout_seconds: Annotated[
        float,
        Meta(gt=0, description="How long a commit of many gigabytes may take to be in the logs."),
    ] = 3600.0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All of a broker's settings, as the file `fanlog.toml` has them."""

    data: Annotated[str, Meta(description="The data folder.")] = DEFAULT_DATA
    listener: ListenerOptions = ListenerOptions()
    redis: RedisOptions = RedisOptions()
    broker: BrokerOptions = BrokerOptions()
    log: LogOptions = LogOptions()
    topic: TopicSettings = TopicSettings()
