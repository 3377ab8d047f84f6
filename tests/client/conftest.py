"""What tests of clients share: a clock for brokers that only the test moves."""

from __future__ import annotations

import pytest

from fanlog.node import LoopRuntime
from tests.client.ways import BrokerClock


@pytest.fixture
def broker_clock(monkeypatch: pytest.MonkeyPatch) -> BrokerClock:
    """Brokers of this test begin now, and then only `advance` moves their time."""
    clock = BrokerClock()
    monkeypatch.setattr(LoopRuntime, "now_us", lambda _: clock.now_us)
    monkeypatch.setattr(LoopRuntime, "monotonic_us", lambda _: clock.monotonic_us)
    return clock
