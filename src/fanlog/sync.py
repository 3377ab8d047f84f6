"""The client for plain, blocking code: `fanlog.sync.connect(...)`."""

from fanlog.client.blocking.client import Client, Subscription, connect
from fanlog.client.blocking.groups import GroupMember
from fanlog.client.blocking.queues import Job, JobBatch, Worker
from fanlog.client.blocking.transactions import Transaction
from fanlog.client.blocking.typed import (
    Topic,
    TypedGroupMember,
    TypedJob,
    TypedSubscription,
    TypedWorker,
)

__all__ = [
    "Client",
    "GroupMember",
    "Job",
    "JobBatch",
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
