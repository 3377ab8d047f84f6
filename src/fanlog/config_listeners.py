"""The settings of the native and the Redis listener: where they listen, and what a peer may
cost."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.config_live import LIVE
from fanlog.model import KIB, MIB

NATIVE_PORT = 7420
REDIS_PORT = 7421
DEFAULT_HOST = "127.0.0.1"

SlowPolicyName = Literal["catch-up", "skip", "disconnect"]


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
