"""How tests run: an `async def` test on its own loop, with a limit of its own; the tests of one
file in one process, and those of Spark together, because they share one session."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.power.machine import Machine, machine_of

# A slow machine is no fault of the code: neither in a test, nor where its examples are made.
hypothesis.settings.register_profile(
    "fanlog", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fanlog")

# Longer than whatever a test waits for, and shorter than the limit of pytest itself.
ASYNC_TEST_SECONDS = 100
_SPARK = "spark"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(test(**given), ASYNC_TEST_SECONDS))
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says which tests stay together when several processes share them (`pytest -n 2`). Spark's
    come first: they take longest, and only one process can run them."""
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: groups[item] != _SPARK)


def _group(item: pytest.Item) -> str:
    file = item.path.relative_to(item.config.rootpath)
    return _SPARK if file.parts[1] == _SPARK else str(file)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder."""
    return tmp_path / "data"


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """What `OUTAGES` of tests/power/machine.py name: how a broker there is killed."""
    with machine_of(request.param, tmp_path) as made:
        yield made
