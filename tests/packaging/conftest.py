"""The package as a user gets it: built from the sources, and installed where nothing else is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.environments import pip

ROOT = Path(__file__).parents[2]
# Each installs packages, which takes as long as the network does.
SECONDS_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/packaging/" in str(item.path):
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@dataclass(frozen=True, slots=True)
class Distributions:
    """The two files that go to PyPI. The wheel is built from the sdist, as `build` does it."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        env=pip(),
        timeout=SECONDS_MAX,
    )
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return Distributions(sdist, wheel)
