"""The settings of clients, and of Spark tasks, which are clients too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.model import KIB, MIB


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
