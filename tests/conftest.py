"""How tests run: an `async def` test on its own loop, with a limit of its own; the tests of one
file in one process, and those of Spark together, because they share one session."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import xdist.remote
from xdist.scheduler import LoadScopeScheduling

from tests.power.machine import Machine, machine_of

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


class FilesTogether(LoadScopeScheduling):
    """Gives each file to one process (`pytest -n 2`), and all files of Spark to the same one: they
    share a session. Groups with many tests go first, and Spark's has most."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "spark" if file.startswith("tests/spark/") else file


def pytest_xdist_make_scheduler(
    config: pytest.Config, log: xdist.remote.Producer
) -> LoadScopeScheduling:
    return FilesTogether(config, log)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder."""
    return tmp_path / "data"


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """What `OUTAGES` of tests/power/machine.py name: how a broker there is killed."""
    with machine_of(request.param, tmp_path) as made:
        yield made
