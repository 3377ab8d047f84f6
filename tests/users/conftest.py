"""Three people who know the README and the documents, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.packaging.distributions import Distributions
from tests.packaging.environments import Bare
from tests.users.user import User

SECONDS_MAX = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/users/" in str(item.path):
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return Distributions.shared(tmp_path_factory)


@pytest.fixture(scope="module")
def user(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A newcomer: Python, and an empty environment."""
    bare = Bare.make(sys.executable, tmp_path_factory.mktemp("user"))
    newcomer = User(bare, distributions.wheel)
    yield newcomer
    newcomer.leaves()
