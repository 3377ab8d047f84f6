"""How tests run: an `async def` test on its own loop (those with a browser share one), with a limit
of its own; the tests of one file in one process, and those of Spark together, because they share
one session."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import xdist.remote
from xdist.scheduler import LoadScopeScheduling

from tests import secured
from tests.costs import CostsPerFile, CostsPerTest
from tests.fast import forbid_programs, is_fast
from tests.power.machine import Machine, machine_of
from tests.sharing import group_of, longest_first, processes, shuffle

if secured.ON:
    secured.secure()

# A slow machine is no fault of the code: neither in a test, nor where its examples are made.
hypothesis.settings.register_profile(
    "fanlog", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fanlog")

# What is started in the background ignores Ctrl-C, and so does all that it starts. Tests end
# programs that way, and would wait for each of them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Longer than whatever a test waits for, and shorter than the limit of pytest itself.
ASYNC_TEST_SECONDS = 280


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    limited = asyncio.wait_for(test(**given), _limit_seconds(pyfuncitem))
    chromium: Any = pyfuncitem.funcargs.get("chromium")
    if chromium is None:
        asyncio.run(limited)
    else:
        chromium.driver.run(limited)
    return True


def _limit_seconds(test: pytest.Function) -> float:
    """A test with a limit of its own needs most of it; `--timeout` gives all more time."""
    own = test.get_closest_marker("timeout")
    limits = [test.config.getoption("timeout"), None if own is None else own.args[0]]
    return max([ASYNC_TEST_SECONDS, *(limit - 20 for limit in limits if limit)])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="write CPU and waiting time of each file there")
    parser.addoption("--fast", action="store_true", help="only what tests/fast.py chooses")
    parser.addoption("--shuffle", type=int, help="run tests in a random order, by this seed")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    costs = config.getoption("costs")
    if costs is not None:
        config.pluginmanager.register(CostsPerTest())
        if not is_worker:
            config.pluginmanager.register(CostsPerFile(costs))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """None leaves the decision to others."""
    tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.getoption("fast") and tests and not is_fast(collection_path) else None


def pytest_collection_finish() -> None:
    # Modules and tests stay. To look for garbage among them again and again takes seconds.
    gc.collect()
    gc.freeze()


def pytest_runtestloop(session: pytest.Session) -> None:
    # Not in the process that shares out the tests: it starts those that run them.
    is_worker = hasattr(session.config, "workerinput")
    if session.config.getoption("fast") and (is_worker or not session.config.option.numprocesses):
        forbid_programs()


def pytest_xdist_auto_num_workers() -> int:
    return processes()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take long begin first, where files are shared out among processes."""
    if hasattr(config, "workerinput"):
        seconds = longest_first()
        items.sort(key=lambda item: -seconds.get(group_of(item.nodeid), 0.0))
    if (seed := config.getoption("shuffle")) is not None:
        shuffle(items, seed)


class FilesTogether(LoadScopeScheduling):
    """Gives each file to one process, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(
    config: pytest.Config, log: xdist.remote.Producer
) -> LoadScopeScheduling:
    # It would begin with those that have many tests, however short they are.
    config.option.loadscopereorder = False
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
