"""Every option and every limit of Fanlog: its name, its default, its range and its reason. These
are plain values. Only the command line (`fanlog.cli`) reads them from a file, the environment or
flags.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.config_cluster import ClusterOptions
from fanlog.config_limits import LimitOptions
from fanlog.config_live import LIVE
from fanlog.config_security import (
    AuditOptions,
    KeyTable,
    SecurityOptions,
    TelemetryOptions,
    TlsOptions,
    UserTable,
)
from fanlog.config_web import WebOptions
from fanlog.model import KIB, MIB, TopicSettings

NATIVE_PORT = 7420
REDIS_PORT = 7421
DEFAULT_HOST = "127.0.0.1"
DEFAULT_DATA = "fanlog-data"

SlowPolicyName = Literal["catch-up", "skip", "disconnect"]


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How logs are kept on disk and in memory."""

    segment_first_bytes: Annotated[
        int,
        Meta(
            ge=4 * KIB,
            description="First allocation of a segment file. It doubles as the file fills, so "
            "that small topics stay small.",
        ),
    ] = 16 * KIB
    index_interval_bytes: Annotated[
        int,
        Meta(
            ge=1 * KIB,
            description="Log bytes between two entries of the sparse index. Fewer bytes: "
            "faster seeks, larger index.",
        ),
    ] = 32 * KIB
    read_block_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB, description="Bytes that one disk read takes for a reader that catches up."
        ),
    ] = 1 * MIB
    fetch_block_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            description="Bytes that one disk read takes for a large fetch, such as Spark's.",
        ),
    ] = 4 * MIB
    read_cache_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Memory for blocks read from disk. Readers that catch up share them.",
        ),
    ] = 64 * MIB
    index_cache_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB, description="Memory for the most recently used indexes of sealed segments."
        ),
    ] = 64 * MIB
    journal_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Size of each of the two journals. A larger journal syncs segments less "
            "often.",
        ),
    ] = 64 * MIB
    open_segments_max: Annotated[
        int,
        Meta(
            ge=16,
            description="Segment files kept open for writing. More than this are closed and "
            "opened again.",
        ),
    ] = 2048
    reserve_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Disk space that the broker keeps free for itself, so that a full "
            "disk does not stop deletes and starts. At most one sixteenth of the "
            "disk.",
        ),
    ] = 8 * MIB
    reserved_files: Annotated[
        int,
        Meta(
            ge=32,
            description="File descriptors that only the log may use, so that connections "
            "can't take them all. At most half of the process limit.",
        ),
    ] = 4096
    tail_total_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Memory for the tails of all topic partitions together. Above it, the "
            "oldest bytes leave memory first.",
        ),
    ] = 1024 * MIB
    retention_check_seconds: Annotated[
        float, Meta(extra=LIVE, gt=0, description="Time between two retention checks.")
    ] = 30.0
    clock_trust_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="After the wall clock jumps forward, retention by age deletes nothing "
            "for this long. A wrong clock then loses no data.",
        ),
    ] = 3600.0
    compaction_keys_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Keys that one compaction holds in memory. A log with more keys is "
            "compacted in several rounds.",
        ),
    ] = 500_000


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


class ListenerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The network front: where it listens, and what a peer may cost."""

    host: Annotated[
        str, Meta(description="Address to listen on. 0.0.0.0 listens on every network interface.")
    ] = DEFAULT_HOST
    port: Annotated[int, Meta(ge=0, le=65535, description="Native port. 0 takes a free one.")] = (
        NATIVE_PORT
    )
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Open connections. The broker answers one more with an error and "
            "closes it.",
        ),
    ] = 100_000
    hello_timeout_seconds: Annotated[
        float,
        Meta(
            extra=LIVE,
            gt=0,
            description="The broker closes a connection that has not sent its hello frame "
            "after this time.",
        ),
    ] = 10.0
    idle_timeout_seconds: Annotated[
        float,
        Meta(
            extra=LIVE,
            gt=0,
            description="The broker closes a connection that was silent for this long. "
            "Clients send pings to stay connected.",
        ),
    ] = 60.0
    frame_timeout_seconds: Annotated[
        float,
        Meta(extra=LIVE, gt=0, description="Time that a client has to send the rest of a frame."),
    ] = 30.0
    frame_bytes_max: Annotated[
        int, Meta(ge=64 * KIB, le=1024 * MIB, description="Largest frame that the broker accepts.")
    ] = 16 * MIB
    receive_bytes: Annotated[
        int,
        Meta(ge=4 * KIB, le=64 * MIB, description="Most bytes that one read takes from a socket."),
    ] = 256 * KIB
    control_bytes_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=16 * KIB,
            description="Answers that a client has not read yet. Above it, the broker stops "
            "reading from that client.",
        ),
    ] = 1 * MIB
    subscriptions_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Subscriptions of one connection.")
    ] = 100_000
    requests_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Unanswered requests of one connection. Above it, the broker stops "
            "reading from that connection.",
        ),
    ] = 1024
    fetch_bytes_max: Annotated[
        int, Meta(ge=4 * KIB, description="Most log bytes in one answer to a fetch.")
    ] = 8 * MIB
    fetches_max: Annotated[
        int,
        Meta(extra=LIVE, ge=1, description="Fetches of one connection that wait for new records."),
    ] = 1024
    fetch_wait_seconds_max: Annotated[
        float,
        Meta(extra=LIVE, ge=0, description="Longest time that a fetch may wait for new records."),
    ] = 30.0
    drain_seconds: Annotated[
        float, Meta(extra=LIVE, ge=0, description="Total time that a stop waits for slow clients.")
    ] = 10.0


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The Redis listener: where it listens, what a peer may cost, and how channels are kept."""

    host: Annotated[
        str, Meta(description="Address to listen on. 0.0.0.0 listens on every network interface.")
    ] = DEFAULT_HOST
    port: Annotated[
        int,
        Meta(
            ge=-1,
            le=65535,
            description="Redis port. 0 takes a free one, -1 turns the Redis listener off.",
        ),
    ] = REDIS_PORT
    password: Annotated[
        str,
        Meta(
            extra=LIVE,
            description="Password that clients must send with AUTH. Empty: no password. It is "
            "better to use a separate file: password_file.",
        ),
    ] = ""
    password_file: Annotated[
        str,
        Meta(description="File with that password, so that the configuration does not contain it."),
    ] = ""
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Open connections. The broker answers one more with an error and "
            "closes it.",
        ),
    ] = 100_000
    subscriptions_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Channels and patterns of one connection.")
    ] = 100_000
    arguments_max: Annotated[int, Meta(ge=1024, description="Arguments of one command.")] = (
        1024 * 1024
    )
    bulk_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=64 * MIB,
            description="Largest argument of a command, and so the largest message.",
        ),
    ] = 32 * MIB
    inline_bytes_max: Annotated[
        int, Meta(ge=1 * KIB, description="Longest line: an inline command, or a header.")
    ] = 64 * KIB
    request_bytes_max: Annotated[
        int,
        Meta(
            ge=128 * KIB,
            description="Size of one command, or of all commands that MULTI queues. It limits "
            "the memory of one client.",
        ),
    ] = 64 * MIB
    pattern_bytes_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Longest pattern. Each pattern is compiled and compared with every "
            "channel.",
        ),
    ] = 1024
    command_timeout_seconds: Annotated[
        float,
        Meta(extra=LIVE, gt=0, description="Time that a client has to send the rest of a command."),
    ] = 60.0
    slow_policy: Annotated[
        SlowPolicyName,
        Meta(
            extra=LIVE,
            description="What happens to a subscriber that falls behind the tail of its channel.",
        ),
    ] = "skip"
    channel_tail_bytes: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=64 * KIB,
            description="Newest bytes of a channel kept in memory. A subscriber may lag by "
            "this much.",
        ),
    ] = 8 * MIB
    channel_retention_seconds: Annotated[
        int, Meta(extra=LIVE, ge=1, description="How long the tail of a channel keeps a message.")
    ] = 3600
    channel_idle_seconds: Annotated[
        float,
        Meta(
            extra=LIVE,
            gt=0,
            description="The broker removes the topic of a channel that had no messages for "
            "this long.",
        ),
    ] = 300.0


class EdgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`fanlog edge`: a process without its own data, in front of a bus."""

    upstream: Annotated[
        str,
        Meta(
            description="The bus: fanlog://host:port, redis://host:port or nats://host:port; with "
            "TLS fanlogs://, rediss:// or tls://."
        ),
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authorities to trust for the certificate of the bus. "
            "Empty: those of this machine."
        ),
    ] = ""
    tls_certificate_file: Annotated[
        str, Meta(description="PEM file with the client certificate of the edge for the bus.")
    ] = ""
    tls_key_file: Annotated[
        str, Meta(description="PEM file with the private key of that certificate.")
    ] = ""
    tls_server_name: Annotated[
        str,
        Meta(
            description="Name that the certificate of the bus must have. Empty: the host of the "
            "address."
        ),
    ] = ""
    key_file: Annotated[
        str,
        Meta(
            description="File with the edge's key for a Fanlog broker. The key needs the role "
            "admin, because the edge acts for its clients. Without it the edge uses "
            "FANLOG_KEY_FILE or FANLOG_KEY, like commands."
        ),
    ] = ""
    linger_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="How long the edge follows a topic upstream after its last reader has "
            "left. Readers often return soon: a page is reloaded, a phone changes networks.",
        ),
    ] = 10.0
    history_seconds: Annotated[
        int,
        Meta(
            ge=1,
            description="With Redis upstream: how long Redis keeps a topic that nobody publishes "
            "to or follows.",
        ),
    ] = 86_400
    history_messages: Annotated[
        int,
        Meta(
            ge=1,
            description="With Redis or NATS upstream: messages of each topic that it keeps, for "
            "readers that resume.",
        ),
    ] = 10_000
    fetches_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Blocks of history that the edge fetches from its upstream at a time. "
            "With more, readers that catch up would delay new messages.",
        ),
    ] = 8


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Batching, timeouts and reconnects of a client."""

    name: Annotated[
        str, Meta(max_length=255, description="Name of this client, as the broker shows it.")
    ] = ""
    producer: Annotated[
        str,
        Meta(
            max_length=255,
            description="Publish under this name. A second client with the same name fences "
            "the first: its publishes then fail.",
        ),
    ] = ""
    tls_ca_file: Annotated[
        str,
        Meta(
            description="PEM file with the authorities to trust for a broker's certificate. "
            "Empty: those of this machine."
        ),
    ] = ""
    tls_certificate_file: Annotated[
        str, Meta(description="PEM file with this client's own certificate.")
    ] = ""
    tls_key_file: Annotated[
        str, Meta(description="PEM file with the private key of this client's certificate.")
    ] = ""
    tls_server_name: Annotated[
        str,
        Meta(
            description="Name that the broker's certificate must have. Empty: the host of the "
            "address."
        ),
    ] = ""
    idempotent: Annotated[
        bool,
        Meta(
            description="Store a message once, even if the client sends it again after a lost "
            "connection. Off: it may be stored twice."
        ),
    ] = True
    linger_ms: Annotated[
        float,
        Meta(
            ge=0,
            description="Time to wait for more messages before the client sends a batch. 0 sends "
            "at the end of the event loop's turn.",
        ),
    ] = 0.0
    batch_bytes: Annotated[
        int,
        Meta(
            ge=1, le=16 * MIB, description="The client sends a batch when it holds this many bytes."
        ),
    ] = 64 * KIB
    batch_records: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 20,
            description="The client sends a batch when it holds this many records.",
        ),
    ] = 8192
    batches_in_flight: Annotated[
        int, Meta(ge=1, le=128, description="Unacknowledged batches of one topic partition.")
    ] = 16
    buffer_bytes_max: Annotated[
        int,
        Meta(
            ge=4 * KIB,
            description="Bytes of messages held until they are acknowledged. Above it, send() "
            "waits.",
        ),
    ] = 32 * MIB
    window_bytes: Annotated[
        int,
        Meta(
            ge=4 * KIB,
            description="Log bytes that the broker may send to one subscription ahead of the "
            "application.",
        ),
    ] = 4 * MIB
    batch_unpacked_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=256 * MIB,
            description="Largest unpacked size of a batch. The client skips a larger one and "
            "reports a gap.",
        ),
    ] = 128 * MIB
    compression: Annotated[
        str,
        Meta(
            description="none, zlib, zstd or lz4. It applies to topics that leave the choice "
            "to the producer."
        ),
    ] = "none"
    encoding: Annotated[
        Literal["json", "msgpack"],
        Meta(description="How objects are published; bytes and str stay as they are."),
    ] = "json"
    wait_seconds: Annotated[
        float,
        Meta(ge=0, description="How long connect() retries while no broker answers."),
    ] = 0.0
    connect_timeout_seconds: Annotated[
        float, Meta(gt=0, description="Timeout of one attempt to connect.")
    ] = 5.0
    request_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Timeout of a request. After it, nobody knows whether the broker did the "
            "request.",
        ),
    ] = 30.0
    delivery_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Timeout of a publish. After it, nobody knows whether the message is "
            "stored.",
        ),
    ] = 120.0
    ping_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Time between two pings. After three pings without an answer the "
            "connection counts as lost.",
        ),
    ] = 15.0
    reconnect: Annotated[bool, Meta(description="Reconnect after a lost connection.")] = True
    backoff_first_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Wait before the second attempt to reconnect. It doubles with each "
            "attempt.",
        ),
    ] = 0.05
    backoff_max_seconds: Annotated[
        float, Meta(gt=0, description="Longest wait between two attempts to reconnect.")
    ] = 5.0
    key: Annotated[str, Meta(description="API key to log in with.")] = ""
    key_file: Annotated[
        str, Meta(description="File with the API key. The client reads it for every connection.")
    ] = ""
    user: Annotated[str, Meta(description="User to log in as, with a password.")] = ""
    password: Annotated[str, Meta(description="The user's password.")] = ""
    password_file: Annotated[str, Meta(description="File with the user's password.")] = ""
    token: Annotated[
        Any,
        Meta(
            description="Token to log in with, or a function, plain or async, that returns one. "
            "The client calls it for every connection, and before the token expires."
        ),
    ] = ""

    def __repr__(self) -> str:
        return f"ClientOptions(name={self.name!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # Without it rich would show every field, the secrets among them.
        return [("name", self.name)]


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Batch sizes and timeouts of a Spark task."""

    fetch_bytes: Annotated[
        int, Meta(ge=4 * KIB, description="Log bytes that a task asks for in one fetch.")
    ] = 8 * MIB
    batch_unpacked_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            le=256 * MIB,
            description="Largest unpacked size of a batch. A larger one counts as lost.",
        ),
    ] = 128 * MIB
    rows_max: Annotated[
        int, Meta(ge=1, description="Rows of an Arrow batch that joins several batches of the log.")
    ] = 32_768
    rows_bytes: Annotated[
        int,
        Meta(
            ge=1,
            description="Unpacked bytes of an Arrow batch that joins several batches of the "
            "log. Above it, a new one begins.",
        ),
    ] = 4 * MIB
    stage_bytes: Annotated[
        int, Meta(ge=4 * KIB, description="Approximate size of a batch that a sink stages.")
    ] = 1 * MIB
    stages_in_flight: Annotated[
        int, Meta(ge=1, description="Staged frames that wait for an answer.")
    ] = 4
    stage_rounds_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Consecutive connections without an answer to a staged batch. After that "
            "the task fails.",
        ),
    ] = 10
    transaction_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How long staged rows of a task wait for the driver's transaction commit.",
        ),
    ] = 3600.0
    commit_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Timeout of a transaction commit. With many gigabytes it takes a while.",
        ),
    ] = 3600.0


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a broker, in the structure of `fanlog.toml`."""

    data: Annotated[str, Meta(description="The data folder.")] = DEFAULT_DATA
    workers: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Processes that serve the clients of `fanlog serve`, beside the one that "
            "has the data. 0: one process does everything. It pays with many readers.",
        ),
    ] = 0
    listener: ListenerOptions = ListenerOptions()
    redis: RedisOptions = RedisOptions()
    web: WebOptions = WebOptions()
    tls: TlsOptions = TlsOptions()
    security: SecurityOptions = SecurityOptions()
    keys: dict[str, KeyTable] = {}
    users: dict[str, UserTable] = {}
    audit: AuditOptions = AuditOptions()
    limits: LimitOptions = LimitOptions()
    telemetry: TelemetryOptions = TelemetryOptions()
    edge: EdgeOptions = EdgeOptions()
    cluster: ClusterOptions = ClusterOptions()
    broker: BrokerOptions = BrokerOptions()
    log: LogOptions = LogOptions()
    topic: TopicSettings = TopicSettings()
