"""How tests run coroutines: an `async def` test runs on its own loop, with a limit of its own."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import hypothesis
import pytest

# A slow machine is no fault of the code: neither in a test, nor where its examples are made.
hypothesis.settings.register_profile(
    "fanlog", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fanlog")

# Longer than whatever a test waits for, and shorter than the limit of pytest itself.
ASYNC_TEST_SECONDS = 100


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(test(**given), ASYNC_TEST_SECONDS))
    return True


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder."""
    return tmp_path / "data"
