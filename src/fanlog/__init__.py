"""Fanlog: publish once, and any number of readers follow.

    async with fanlog.connect("fanlog://127.0.0.1:7420") as client:
        await client.publish("greetings", "hello")
        async with client.subscribe("greetings", start="earliest") as greetings:
            async for message in greetings:
                print(message.text)

`fanlog.connect` is for asyncio, `fanlog.sync.connect` for plain code, and `fanlog.Broker` runs a
broker inside this program.

Law: `import fanlog` loads no client and no broker. Each name brings its own when it is first used,
so that a program pays for what it uses: Spark starts a Python for every question that it has.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fanlog import errors
from fanlog.config import ClientOptions, Config
from fanlog.errors import FanlogError, MessagesLostError
from fanlog.identity import Allowance, Role, Rules
from fanlog.model import (
    ConnectionInfo,
    Durability,
    Gap,
    GroupInfo,
    PendingMessage,
    PresenceInfo,
    PresentUser,
    Receipt,
    Scheduled,
    ScheduleInfo,
    SlowPolicy,
    TopicInfo,
    TopicPartition,
    TopicSettings,
    WebConnectionInfo,
)
from fanlog.release import VERSION

if TYPE_CHECKING:
    from fanlog import sync, testing
    from fanlog.client.aio import Client, connect
    from fanlog.client.backoff import Backoff
    from fanlog.client.groups.member import GroupMember
    from fanlog.client.groups.running import Handled
    from fanlog.client.message import Message, MessageBatch
    from fanlog.client.queues.job_batch import JobBatch
    from fanlog.client.queues.jobs import Job
    from fanlog.client.queues.worker import Worker
    from fanlog.client.streams import Stream, StreamReader
    from fanlog.client.subscription import Subscription
    from fanlog.client.tracing import processing
    from fanlog.client.transactions.transaction import Transaction
    from fanlog.client.transactions.transform import Outgoing
    from fanlog.client.typed.jobs import TypedJob, TypedWorker
    from fanlog.client.typed.messages import TypedGroupMember, TypedMessage, TypedSubscription
    from fanlog.client.typed.topic import Topic
    from fanlog.format.accounts import KeyInfo, KeyMade, UserInfo
    from fanlog.format.batch import Batch
    from fanlog.node import Broker

__version__ = VERSION

_HOMES = {
    "Backoff": "fanlog.client.backoff",
    "Batch": "fanlog.format.batch",
    "Broker": "fanlog.node",
    "Client": "fanlog.client.aio",
    "GroupMember": "fanlog.client.groups.member",
    "Handled": "fanlog.client.groups.running",
    "KeyInfo": "fanlog.format.accounts",
    "KeyMade": "fanlog.format.accounts",
    "UserInfo": "fanlog.format.accounts",
    "Job": "fanlog.client.queues.jobs",
    "JobBatch": "fanlog.client.queues.job_batch",
    "Message": "fanlog.client.message",
    "MessageBatch": "fanlog.client.message",
    "Outgoing": "fanlog.client.transactions.transform",
    "Stream": "fanlog.client.streams",
    "StreamReader": "fanlog.client.streams",
    "Subscription": "fanlog.client.subscription",
    "Topic": "fanlog.client.typed.topic",
    "Transaction": "fanlog.client.transactions.transaction",
    "TypedGroupMember": "fanlog.client.typed.messages",
    "TypedJob": "fanlog.client.typed.jobs",
    "TypedMessage": "fanlog.client.typed.messages",
    "TypedSubscription": "fanlog.client.typed.messages",
    "TypedWorker": "fanlog.client.typed.jobs",
    "Worker": "fanlog.client.queues.worker",
    "connect": "fanlog.client.aio",
    "processing": "fanlog.client.tracing",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used."""
    if name in ("sync", "testing"):
        return import_module(f"fanlog.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fanlog' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Allowance",
    "Backoff",
    "Batch",
    "Broker",
    "Client",
    "ClientOptions",
    "Config",
    "ConnectionInfo",
    "Durability",
    "FanlogError",
    "Gap",
    "GroupInfo",
    "GroupMember",
    "Handled",
    "Job",
    "JobBatch",
    "KeyInfo",
    "KeyMade",
    "Message",
    "MessageBatch",
    "MessagesLostError",
    "Outgoing",
    "PendingMessage",
    "PresenceInfo",
    "PresentUser",
    "Receipt",
    "Role",
    "Rules",
    "ScheduleInfo",
    "Scheduled",
    "SlowPolicy",
    "Stream",
    "StreamReader",
    "Subscription",
    "Topic",
    "TopicInfo",
    "TopicPartition",
    "TopicSettings",
    "Transaction",
    "TypedGroupMember",
    "TypedJob",
    "TypedMessage",
    "TypedSubscription",
    "TypedWorker",
    "UserInfo",
    "WebConnectionInfo",
    "Worker",
    "__version__",
    "connect",
    "errors",
    "processing",
    "sync",
    "testing",
]
