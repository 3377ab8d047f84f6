"""The two files that go to PyPI, built once for all tests that need them, in all processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.environments import pip

ROOT = Path(__file__).parents[2]
BUILD_SECONDS_MAX = 300


@dataclass(frozen=True, slots=True)
class Distributions:
    """The two files that go to PyPI. The wheel is built from the sdist, as `build` does it."""

    sdist: Path
    wheel: Path

    @classmethod
    def build(cls, folder: Path) -> Distributions:
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", folder, ROOT],
            check=True,
            capture_output=True,
            env=pip(),
            timeout=BUILD_SECONDS_MAX,
        )
        return cls.found(folder)

    @classmethod
    def found(cls, folder: Path) -> Distributions:
        (sdist,) = folder.glob("*.tar.gz")
        (wheel,) = folder.glob("*.whl")
        return cls(sdist, wheel)

    @classmethod
    def shared(cls, factory: pytest.TempPathFactory) -> Distributions:
        """Those of this run: the first process that needs them builds them."""
        root = factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:
            root = root.parent
        built = root / "distributions"
        with (root / "distributions.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if built.is_dir():
                return cls.found(built)
            half = root / "distributions.half"
            cls.build(half)
            half.rename(built)
            return cls.found(built)
