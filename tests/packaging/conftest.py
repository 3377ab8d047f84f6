"""The package as a user gets it: built from the sources, and installed where nothing else is."""

from __future__ import annotations

import pytest

from tests.packaging.distributions import Distributions

# Each installs packages, which takes as long as the network does.
SECONDS_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/packaging/" in str(item.path):
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return Distributions.shared(tmp_path_factory)
