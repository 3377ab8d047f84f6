"""The pytest plugin of Fanlog. pytest finds it by itself, and it needs no other plugin.

Law: the plugin imports nothing of Fanlog before a test uses a fixture, so it costs other projects
nothing.

| fixture | gives |
| --- | --- |
| `fanlog_broker` | a broker in memory, in a thread of its own: a blocking client with a clock and \
assertions |
| `fanlog_url` | where clients of `fanlog_broker` connect to |
| `fanlog_redis_url` | where Redis clients connect to |
| `fanlog_client` | an asyncio client: `async with fanlog_client as client` |
| `fanlog_sync_client` | a blocking client that is connected |
| `fanlog_clock` | the time of `fanlog_broker`: `fanlog_clock.advance(60)` |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fanlog.client.aio import Connecting
    from fanlog.sync import Client
    from fanlog.testing import Clock, SyncBroker


@pytest.fixture
def fanlog_broker() -> Iterator[SyncBroker]:
    """A broker for one test, in memory. It is a blocking client, with `clock`, `published(topic)`
    and `assert_published(topic, key=..., json=...)`."""
    from fanlog.testing import sync_broker  # noqa: PLC0415 - see the law

    with sync_broker() as broker:
        yield broker


@pytest.fixture
def fanlog_url(fanlog_broker: SyncBroker) -> str:
    """The address of `fanlog_broker`, for code that connects."""
    return fanlog_broker.url


@pytest.fixture
def fanlog_redis_url(fanlog_broker: SyncBroker) -> str:
    """The address of `fanlog_broker` for Redis clients."""
    return fanlog_broker.redis_url


@pytest.fixture
def fanlog_clock(fanlog_broker: SyncBroker) -> Clock:
    """The time of `fanlog_broker`."""
    return fanlog_broker.clock


@pytest.fixture
def fanlog_client(fanlog_url: str) -> Connecting:
    """An asyncio client of `fanlog_broker`, to be entered: `async with fanlog_client as client`."""
    import fanlog  # noqa: PLC0415 - see the law

    return fanlog.connect(fanlog_url)


@pytest.fixture
def fanlog_sync_client(fanlog_url: str) -> Iterator[Client]:
    """A blocking client that is connected to `fanlog_broker`."""
    import fanlog.sync  # noqa: PLC0415 - see the law

    with fanlog.sync.connect(fanlog_url) as client:
        yield client
