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
from fanlog.client.message import Message, MessageBatch
from fanlog.client.subscription import Subscription
from fanlog.config import ClientOptions, Config
from fanlog.errors import FanlogError, MessagesLostError
from fanlog.format.batch import Batch
from fanlog.model import Durability, Gap, Receipt, SlowPolicy, TopicInfo, TopicSettings
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
    "Message",
    "MessageBatch",
    "MessagesLostError",
    "Receipt",
    "SlowPolicy",
    "Subscription",
    "TopicInfo",
    "TopicSettings",
    "__version__",
    "connect",
    "errors",
    "sync",
]
