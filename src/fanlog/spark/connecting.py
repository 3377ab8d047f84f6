"""The connection of Spark's driver and tasks to the broker, with the login of their process."""

from __future__ import annotations

from typing import Any

from fanlog.client.request_connection import RequestConnection
from fanlog.config import ClientOptions
from fanlog.spark.environment import login_options
from fanlog.spark.options import ReadOptions, WriteOptions


def open_broker(
    options: ReadOptions | WriteOptions, *, patient: bool = False, turn: int = 0
) -> RequestConnection:
    """Connects. If it is `patient`, a broker that is not there is waited for. With different turns
    it begins with different nodes of a cluster."""
    given: dict[str, Any] = login_options(options.key_file) | dict(options.tls)
    client = ClientOptions(name="fanlog.spark", **given)
    return RequestConnection(_begin_with(options.url, turn), client, patient=patient)


def _begin_with(url: str, turn: int) -> str:
    """The same nodes, and another one first: each has a copy that can be read."""
    scheme, separator, hosts = url.rpartition("://")
    nodes = hosts.split(",")
    first = turn % len(nodes)
    return f"{scheme}{separator}{','.join(nodes[first:] + nodes[:first])}"
