"""What the broker does for somebody counts as done by them: nobody publishes through a queue, a
dead letter or a role what they may not publish themselves."""

from __future__ import annotations

from typing import Any

import pytest

import fanlog
from fanlog.errors import ForbiddenError, InvalidNameError
from fanlog.identity import Role, Rules
from tests.listeners.peers import PATIENCE_SECONDS
from tests.listeners.test_login import guarded as native
from tests.listeners.web.guarded import guarded as web


async def test_a_worker_chooses_only_dead_letter_topics_that_it_may_publish_to() -> None:
    async with native() as served:
        served.node.core.create_topic("orders", {"durability": "memory"})
        served.node.core.create_topic("payments", {"durability": "memory"})
        worker = served.add_key("worker", Rules(role=Role.CONSUMER))
        both = served.add_key("both", Rules(role=Role.CONSUMER, publish=("dead.mine",)))
        async with fanlog.connect(served.url, key=worker) as client:
            for forbidden in ("payments", "new", "dead.mine.deep.>"):
                with pytest.raises((ForbiddenError, InvalidNameError)):
                    await client.work("orders", queue="q", dead_letter=forbidden).start()
            assert served.node.core.queues.find("q") is None
            # Where its dead letters go anyway.
            await client.work("orders", queue="q", dead_letter="dead.orders").start()
        async with fanlog.connect(served.url, key=both) as client:
            await client.work("orders", queue="q", dead_letter="dead.mine").start()


async def test_a_taker_chooses_only_dead_letter_topics_that_it_may_publish_to() -> None:
    async with web() as here:
        await here.broker.publish("orders", b"one")
        await here.broker.publish("payments", b"one")
        key = here.key("worker", Role.CONSUMER)
        path = "/v1/queues/orders/q/take"
        status, said = await here.ask("POST", f"{path}?dead_letter=payments", key=key)
        assert (status, said["code"]) == (403, "forbidden")
        assert here.node.core.queues.find("q") is None
        status, _ = await here.ask("POST", f"{path}?dead_letter=dead.orders", key=key)
        assert status == 200


async def test_dead_letters_go_back_only_where_one_may_publish() -> None:
    async with web() as here:
        client = here.broker
        await client.publish("orders", b"one")
        async for job in client.work("orders", queue="q"):
            await job.reject("no")
            break
        await _until_dead(client)
        lists: dict[str, Any] = {"manage": ("dead.>",), "subscribe": ("dead.>",)}
        keeper = here.key("keeper", publish=("dead.>",), **lists)
        path = "/v1/dead-letters/dead.orders/replay"
        for body in ({"all": True}, {"ids": ["0:0"]}, {"ids": ["00:00"]}):
            status, said = await here.ask("POST", path, key=keeper, body=body)
            assert status in (400, 403), said
        assert (await client.describe_topic("orders")).partitions[0].visible_end == 1
        here.key("keeper", publish=("orders",), **lists)
        status, said = await here.ask("POST", path, key=keeper, body={"all": True})
        assert (status, said) == (200, {"count": 1})


async def test_a_schedule_is_changed_by_who_may_publish_to_its_topic() -> None:
    async with native() as served:
        owner = served.add_key("owner", Rules(role=Role.PRODUCER))
        other = served.add_key("other", Rules(role=Role.PRODUCER, publish=("orders",)))
        async with fanlog.connect(served.url, key=owner) as client:
            await client.add_schedule("nightly", "reports", b"run", every_seconds=3600)
            async with fanlog.connect(served.url, key=other) as stranger:
                with pytest.raises(ForbiddenError):
                    await stranger.remove_schedule("nightly")
                with pytest.raises(ForbiddenError):
                    await stranger.add_schedule("nightly", "orders", b"no", every_seconds=60)
                await stranger.add_schedule("own", "orders", b"yes", every_seconds=60)
                assert await stranger.remove_schedule("own")
            assert [one.topic for one in await client.schedules()] == ["reports"]
            assert await client.remove_schedule("nightly")


async def _until_dead(client: fanlog.Broker) -> None:
    reading = client.subscribe("dead.orders", start="earliest")
    await reading.next(timeout_seconds=PATIENCE_SECONDS)
    await reading.close()
