"""Fanlog: publish once, and any number of readers follow.

    async with fanlog.connect("fanlog://127.0.0.1:7420") as client:
        await client.publish("greetings", "hello")
        async with client.subscribe("greetings", start="earliest") as greetings:
            async for message in greetings:
                print(message.text)

`fanlog.connect` is for asyncio, `fanlog.sync.connect` for plain code, and `fanlog.Broker` runs a
broker inside this program.
"""

from fanlog import errors, sync
from fanlog.client.aio import Client, connect
from fanlog.client.groups.member import GroupMember
from fanlog.client.message import Message, MessageBatch
from fanlog.client.queues.jobs import Job, JobBatch
from fanlog.client.queues.worker import Worker
from fanlog.client.subscription import Subscription
from fanlog.client.transactions.transaction import Transaction
from fanlog.client.transactions.transform import Outgoing
from fanlog.config import ClientOptions, Config
from fanlog.errors import FanlogError, MessagesLostError
from fanlog.format.batch import Batch
from fanlog.model import Durability, Gap, GroupInfo, Receipt, SlowPolicy, TopicInfo, TopicSettings
from fanlog.node import Broker
from fanlog.release import VERSION

__version__ = VERSION

__all__ = [
    "Batch",
    "Broker",
    "Client",
    "ClientOptions",
    "Config",
    "Durability",
    "FanlogError",
    "Gap",
    "GroupInfo",
    "GroupMember",
    "Job",
    "JobBatch",
    "Message",
    "MessageBatch",
    "MessagesLostError",
    "Outgoing",
    "Receipt",
    "SlowPolicy",
    "Subscription",
    "TopicInfo",
    "TopicSettings",
    "Transaction",
    "Worker",
    "__version__",
    "connect",
    "errors",
    "sync",
]
