"""Plain, blocking code: `fanlog.sync.connect(...)` is a client, and `fanlog.sync.Broker(...)` a
broker inside this program."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fanlog.client.blocking.client import (
    BlockingClient as Client,
)
from fanlog.client.blocking.client import (
    BlockingSubscription as Subscription,
)
from fanlog.client.blocking.client import (
    connect,
)
from fanlog.client.blocking.groups import BlockingGroupMember as GroupMember
from fanlog.client.blocking.queues import (
    BlockingJob as Job,
)
from fanlog.client.blocking.queues import (
    BlockingJobBatch as JobBatch,
)
from fanlog.client.blocking.queues import (
    BlockingWorker as Worker,
)
from fanlog.client.blocking.streams import (
    BlockingStream as Stream,
)
from fanlog.client.blocking.streams import (
    BlockingStreamReader as StreamReader,
)
from fanlog.client.blocking.transactions import BlockingTransaction as Transaction
from fanlog.client.blocking.typed import (
    BlockingTopic as Topic,
)
from fanlog.client.blocking.typed import (
    BlockingTypedGroupMember as TypedGroupMember,
)
from fanlog.client.blocking.typed import (
    BlockingTypedJob as TypedJob,
)
from fanlog.client.blocking.typed import (
    BlockingTypedSubscription as TypedSubscription,
)
from fanlog.client.blocking.typed import (
    BlockingTypedWorker as TypedWorker,
)

if TYPE_CHECKING:
    from fanlog.embedded import BlockingBroker as Broker


def __getattr__(name: str) -> Any:
    """Loads the broker when it is first used: a client needs none of it."""
    if name != "Broker":
        raise AttributeError(f"module 'fanlog.sync' has no attribute {name!r}")
    found = globals()[name] = import_module("fanlog.embedded").BlockingBroker
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
