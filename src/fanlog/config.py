"""Every option and every limit of Fanlog: its name, its default, its range and its reason. These
are plain values. Only the command line (`fanlog.cli`) reads them from a file, the environment or
flags.

Here are the sections together; the options of a section are in the `config_...` module that has its
name.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.config_broker import BrokerOptions
from fanlog.config_client import ClientOptions, SparkOptions
from fanlog.config_cluster import ClusterOptions
from fanlog.config_edge import EdgeOptions
from fanlog.config_limits import LimitOptions
from fanlog.config_listeners import (
    DEFAULT_HOST,
    NATIVE_PORT,
    REDIS_PORT,
    ListenerOptions,
    RedisOptions,
    SlowPolicyName,
)
from fanlog.config_log import LogOptions
from fanlog.config_security import (
    AuditOptions,
    KeyTable,
    SecurityOptions,
    TelemetryOptions,
    TlsOptions,
    UserTable,
)
from fanlog.config_web import WebOptions
from fanlog.model import TopicSettings

__all__ = [
    "DEFAULT_DATA",
    "DEFAULT_HOST",
    "NATIVE_PORT",
    "REDIS_PORT",
    "AuditOptions",
    "BrokerOptions",
    "ClientOptions",
    "ClusterOptions",
    "Config",
    "EdgeOptions",
    "KeyTable",
    "LimitOptions",
    "ListenerOptions",
    "LogOptions",
    "RedisOptions",
    "SecurityOptions",
    "SlowPolicyName",
    "SparkOptions",
    "TelemetryOptions",
    "TlsOptions",
    "UserTable",
    "WebOptions",
]

DEFAULT_DATA = "fanlog-data"


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
