"""The two files that go to PyPI, built once for all tests that need them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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
        (sdist,) = folder.glob("*.tar.gz")
        (wheel,) = folder.glob("*.whl")
        return cls(sdist, wheel)
