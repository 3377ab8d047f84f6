"""For tests of programs that use Fanlog: a broker in the test's own process, a clock that tests
move, and assertions on published messages.

    async with fanlog.testing.broker() as broker:
        await take_order(broker)
        await broker.assert_published("orders", key="alice", json={"tea": 1})

`fanlog.testing.sync_broker` is the same without asyncio. With pytest there are fixtures:
`fanlog_broker`, `fanlog_url`, `fanlog_clock` and others (`pytest_fanlog`). See docs/testing.md.
"""

from fanlog.testing.brokers import BrokerForTests as Broker
from fanlog.testing.brokers import SyncBroker, broker, sync_broker
from fanlog.testing.clock import Clock
from fanlog.testing.published import ANY

__all__ = ["ANY", "Broker", "Clock", "SyncBroker", "broker", "sync_broker"]
