"""What somebody may see of the metrics: names that a key may not describe are not told, and who is
connected only to operators."""

from __future__ import annotations

import msgspec
import pytest

import fanlog
from fanlog.broker.authority import ALLOW_ALL, Permit
from fanlog.broker.ports import Audit, Authority
from fanlog.broker.state.audit import NO_AUDIT
from fanlog.errors import ForbiddenError
from fanlog.identity import Identity, Role, Rules, Verb
from fanlog.listeners.visible_snapshot import seen_by
from fanlog.security.rules import forbidden
from fanlog.telemetry.snapshot import OTHERS, GroupMetrics, ReaderMetrics, TopicMetrics
from tests.listeners.test_login import guarded


class Sees:
    """May describe one topic, and nothing else."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        if (verb, name) != (Verb.DESCRIBE, "mine"):
            raise forbidden(who, verb, name)


class Asked:
    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.audit: Audit = NO_AUDIT
        self.denied: dict[str, int] = {}
        self.permissions_epoch = 0


async def test_names_that_may_not_be_described_are_among_the_others() -> None:
    async with fanlog.Broker() as broker:
        snapshot = msgspec.structs.replace(
            await broker.metrics(),
            topics=(
                TopicMetrics(name="secret", published_messages=5, stored_bytes=50),
                TopicMetrics(name="mine", published_messages=3),
                TopicMetrics(name=OTHERS, published_messages=1, stored_bytes=1),
            ),
            groups=(GroupMetrics(name="theirs", lag=4), GroupMetrics(name=OTHERS)),
            readers=(ReaderMetrics(connection="native@10.0.0.7:1", listener="native"),),
        )
    asked = Asked(Sees())
    seen = seen_by(Permit(asked, Identity("ann")), snapshot)
    assert [(one.name, one.published_messages) for one in seen.topics] == [("mine", 3), (OTHERS, 6)]
    assert seen.topics[1].stored_bytes == 51
    assert [(one.name, one.lag) for one in seen.groups] == [(OTHERS, 4)]
    assert seen.readers == ()
    assert "secret" not in repr(seen)
    assert asked.denied == {}, "a look is no attempt"
    assert seen_by(Permit(Asked(ALLOW_ALL), Identity()), snapshot) is snapshot


async def test_an_observer_sees_metrics_and_an_admin_connections() -> None:
    async with guarded() as served:
        served.node.core.create_topic("orders", {"durability": "memory"})
        observer = served.add_key("observer", Rules(role=Role.OBSERVER))
        admin = served.add_key("admin", Rules(role=Role.ADMIN))
        async with fanlog.connect(served.url, key=observer) as client:
            snapshot = await client.metrics()
            assert [topic.name for topic in snapshot.topics] == ["orders", OTHERS]
            with pytest.raises(ForbiddenError):
                await client.connections.close(user="admin")
            with pytest.raises(ForbiddenError):
                _ = [one async for one in client.connections.list()]
            async with fanlog.connect(served.url, key=admin) as operator:
                found = {one.user: one async for one in operator.connections.list()}
                assert set(found) == {"observer", "admin"}
                assert found["observer"].account == "key"
        assert served.node.core.denied["admin"] == 2


async def test_failed_logins_are_counted_by_listener() -> None:
    async with guarded() as served:
        served.add_key("k")
        with pytest.raises(fanlog.errors.UnauthenticatedError):
            async with fanlog.connect(served.url, key="fl_wrong", wait_seconds=0.1):
                pass
        snapshot = await served.node.core.metrics.snapshot()
        failures = {one.name: one.auth_failures for one in snapshot.listeners}
        assert failures["native"] >= 1
