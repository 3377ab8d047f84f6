"""The connection of Spark's driver and tasks to the broker, with the login of their process."""

from __future__ import annotations

from typing import Any

from fanlog.client.request_connection import RequestConnection
from fanlog.config import ClientOptions
from fanlog.spark.environment import login_options
from fanlog.spark.options import ReadOptions, WriteOptions


def open_broker(options: ReadOptions | WriteOptions, *, patient: bool = False) -> RequestConnection:
    """Connects. If it is `patient`, a broker that is not there is waited for."""
    given: dict[str, Any] = login_options(options.key_file) | dict(options.tls)
    client = ClientOptions(name="fanlog.spark", **given)
    return RequestConnection(options.url, client, patient=patient)
