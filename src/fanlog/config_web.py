"""The settings of the web listener: where it listens, and what a peer may cost."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.config_live import LIVE
from fanlog.model import KIB, MIB

WEB_PORT = 7422


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The web listener: where it listens, who may use it, and what a peer may cost."""

    host: Annotated[
        str, Meta(description="Address to listen on. 0.0.0.0 listens on every network interface.")
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(
            ge=-1,
            le=65535,
            description="HTTP port. 0 takes a free one, -1 turns the web listener off.",
        ),
    ] = WEB_PORT
    origins: Annotated[
        str,
        Meta(
            description="Origins whose pages may use the listener, separated by spaces, such as "
            "https://app.example.com. * allows all. Pages of the same host always may."
        ),
    ] = ""
    folder: Annotated[
        str,
        Meta(
            description="Folder with your own page and its files. The listener serves it under /."
        ),
    ] = ""
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Open connections. The broker answers one more with an error and "
            "closes it.",
        ),
    ] = 100_000
    header_bytes_max: Annotated[
        int,
        Meta(ge=1 * KIB, le=1 * MIB, description="Longest request line, and longest header."),
    ] = 32 * KIB
    body_bytes_max: Annotated[
        int, Meta(ge=1 * KIB, le=1024 * MIB, description="Largest body of a request.")
    ] = 16 * MIB
    header_timeout_seconds: Annotated[
        float,
        Meta(extra=LIVE, gt=0, description="Time that a client has to send a request's headers."),
    ] = 10.0
    body_timeout_seconds: Annotated[
        float,
        Meta(extra=LIVE, gt=0, description="Time that a client has to send a request's body."),
    ] = 30.0
    keepalive_timeout_seconds: Annotated[
        float,
        Meta(gt=0, description="How long a connection may wait for the next request."),
    ] = 75.0
    latest_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            description="Memory for the latest value of each key of compacted topics, while "
            "somebody follows them with `latest`. Above it the broker refuses `latest`.",
        ),
    ] = 256 * MIB
    wait_seconds_max: Annotated[
        float,
        Meta(extra=LIVE, ge=0, description="Longest time that a request may wait for messages."),
    ] = 30.0
    read_messages_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Most messages in one answer.")
    ] = 1000
    read_bytes_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=4 * KIB,
            le=64 * MIB,
            description="Bytes of messages in one answer. A larger message comes alone.",
        ),
    ] = 1 * MIB
    read_cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of rendered messages kept, so that the next page of a large batch "
            "is not rendered again.",
        ),
    ] = 8 * MIB
    page_entries_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Most entries in one page of a list.")
    ] = 1000
    user_topic: Annotated[
        str,
        Meta(
            pattern=r"\{user\}",
            description="Topic of a user's own messages; {user} stands for the user.",
        ),
    ] = "user.{user}"
    accepts_per_second_max: Annotated[
        float,
        Meta(
            extra=LIVE,
            ge=0,
            description="New connections per second. Others wait in the kernel, so that a wave of "
            "reconnects does not delay open connections. 0 means no limit.",
        ),
    ] = 2000.0
    ping_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How often the server pings a silent client. It disconnects a client that "
            "is silent for twice as long.",
        ),
    ] = 25.0
    message_bytes_max: Annotated[
        int,
        Meta(ge=1 * KIB, le=64 * MIB, description="Largest message of a WebSocket client."),
    ] = 2 * MIB
    messages_per_second_max: Annotated[
        float,
        Meta(
            extra=LIVE,
            ge=0,
            description="Messages per second of one WebSocket client. The server reads a client "
            "that sends more at this rate. 0 means no limit.",
        ),
    ] = 2000.0
    bytes_per_second_max: Annotated[
        float,
        Meta(
            extra=LIVE, ge=0, description="The same for the bytes that one WebSocket client sends."
        ),
    ] = 16.0 * MIB
    subscriptions_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Subscriptions of one connection.")
    ] = 1000
    requests_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=1,
            description="Unanswered operations of one WebSocket client. Above it, the broker "
            "stops reading from that client.",
        ),
    ] = 256
    control_bytes_max: Annotated[
        int,
        Meta(
            extra=LIVE,
            ge=16 * KIB,
            description="Answers that a client has not read yet. Above it, the broker stops "
            "reading from that client.",
        ),
    ] = 1 * MIB
    reconnect_spread_seconds: Annotated[
        float,
        Meta(
            extra=LIVE,
            ge=0,
            description="Time over which a process that stops spreads the reconnects of its "
            "clients.",
        ),
    ] = 10.0
    broadcast_topics_max: Annotated[
        int,
        Meta(
            extra=LIVE, ge=1, description="Most topics that one broadcast to a pattern may reach."
        ),
    ] = 10_000
    ask_timeout_seconds: Annotated[
        float,
        Meta(
            extra=LIVE,
            gt=0,
            description="How long a process waits for the other processes' answers: to list "
            "connections, or to disconnect a user.",
        ),
    ] = 2.0
    presence_heartbeat_seconds: Annotated[
        float,
        Meta(gt=0, description="How often each process sends a heartbeat to the others."),
    ] = 5.0
    presence_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="A process without a heartbeat for this long counts as dead, and its "
            "users have left. Use several times presence_heartbeat_seconds.",
        ),
    ] = 15.0
    presence_grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="After the last connection of a user is lost, the user leaves after this "
            "time, unless the user is back.",
        ),
    ] = 15.0
    presence_info_bytes_max: Annotated[
        int,
        Meta(ge=2, le=64 * KIB, description="Longest `info` of a connection."),
    ] = 1 * KIB
    presence_joins_max: Annotated[
        int, Meta(extra=LIVE, ge=1, description="Topics that one connection may be present in.")
    ] = 100
    presence_connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Connections in topics that one process tracks, on all processes "
            "together. A connection in two topics counts twice.",
        ),
    ] = 200_000
    presence_processes_max: Annotated[
        int, Meta(ge=1, description="Other processes that one process tracks.")
    ] = 1000
    presence_list_max: Annotated[
        int,
        Meta(
            ge=1,
            description="A topic with more users is large: clients get a count, without a list.",
        ),
    ] = 200
    presence_count_seconds: Annotated[
        float,
        Meta(ge=0, description="Time between two counts of a large topic."),
    ] = 2.0
