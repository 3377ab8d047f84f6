"""Plain, blocking code: `fanlog.sync.connect(...)` is a client, and `fanlog.sync.Broker(...)` a
broker inside this program."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fanlog.client.blocking.client import Client, Subscription, connect
from fanlog.client.blocking.groups import GroupMember
from fanlog.client.blocking.queues import Job, JobBatch, Worker
from fanlog.client.blocking.streams import Stream, StreamReader
from fanlog.client.blocking.transactions import Transaction
from fanlog.client.blocking.typed import (
    Topic,
    TypedGroupMember,
    TypedJob,
    TypedSubscription,
    TypedWorker,
)

if TYPE_CHECKING:
    from fanlog.embedded import Broker


def __getattr__(name: str) -> Any:
    """Loads the broker when it is first used: a client needs none of it."""
    if name != "Broker":
        raise AttributeError(f"module 'fanlog.sync' has no attribute {name!r}")
    found = globals()[name] = import_module("fanlog.embedded").Broker
    return found


__all__ = [
    "Broker",
    "Client",
    "GroupMember",
    "Job",
    "JobBatch",
    "Stream",
    "StreamReader",
    "Subscription",
    "Topic",
    "Transaction",
    "TypedGroupMember",
    "TypedJob",
    "TypedSubscription",
    "TypedWorker",
    "Worker",
    "connect",
]
