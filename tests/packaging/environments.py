"""Empty environments: one of any Python here, and none of this process's paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.servers import QUICK_JAVA

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
INSTALL_SECONDS_MAX = 500.0
STEP_SECONDS_MAX = 120.0
# What a user's shell has, besides where the programs are.
_KEPT = ("HOME", "LANG", "LC_ALL", "TMPDIR", "JAVA_HOME")
# What is never imported need not be compiled. 0 is how pip wants its options of "no" to be set.
_QUICK = {"PIP_NO_COMPILE": "0"}
_SYSTEM_PATHS = "/usr/local/bin:/usr/bin:/bin"


def pip() -> dict[str, str]:
    """This process's environment, which says where packages come from, but not where Fanlog is."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FANLOG_")}
    ours.pop("PYTHONPATH", None)
    return {**ours, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **_QUICK}


def pythons() -> dict[str, str]:
    """Every Python on this machine that Fanlog is for, by version."""
    found: dict[str, str] = {}
    for version in VERSIONS:
        for program in _candidates(version):
            if _is_that(program, version):
                found[version] = program
                break
    return found


def _candidates(version: str) -> list[str]:
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [sys.executable] if version == ours else []
    found += [path for path in [shutil.which(f"python{version}")] if path is not None]
    return found + [str(path) for path in sorted(kept.glob(f"{version}.*/bin/python{version}"))]


def _is_that(program: str, version: str) -> bool:
    """Whether it runs and can make environments: a name on the path may lead nowhere."""
    asked = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    try:
        said = subprocess.run(
            [program, "-c", asked],
            check=False,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS_MAX,
        )
    except OSError:
        return False
    return said.stdout.strip() == version


@dataclass(frozen=True, slots=True)
class Bare:
    """An environment with nothing in it but what was installed, and a folder to work in."""

    folder: Path
    home: Path

    @classmethod
    def make(cls, python: str, root: Path, *, own_pip: bool = True) -> Bare:
        """`own_pip`: somebody types `pip` there. `install` does without, which saves seconds."""
        bare = cls(root / "venv", root / "home")
        bare.home.mkdir(parents=True)
        subprocess.run(
            [python, "-m", "venv", *([] if own_pip else ["--without-pip"]), bare.folder],
            check=True,
            capture_output=True,
            env=pip(),
            timeout=STEP_SECONDS_MAX,
        )
        return bare

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def install(self, *packages: str) -> None:
        pip_for = [sys.executable, "-m", "pip", "--python", self.bin / "python"]
        ended = subprocess.run(
            [*pip_for, "install", "--quiet", *packages],
            check=False,
            capture_output=True,
            text=True,
            env=pip(),
            timeout=INSTALL_SECONDS_MAX,
        )
        assert ended.returncode == 0, ended.stderr

    def environment(self, **given: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT or name.startswith("PIP_")
        }
        return {
            **kept,
            **_QUICK,
            "JDK_JAVA_OPTIONS": QUICK_JAVA,
            "PATH": f"{self.bin}:{_SYSTEM_PATHS}",
            "VIRTUAL_ENV": str(self.folder),
            **given,
        }

    def run(self, *command: str | Path, **given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.home,
            env=self.environment(**given),
            timeout=STEP_SECONDS_MAX,
        )
