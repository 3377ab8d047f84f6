"""Which test files `make test-fast` runs: those that take seconds and start no other program.

A file starts programs if it, a module of tests/ that it imports, or a conftest.py of its folder
imports one of `STARTERS`. It takes long if `longest_files.json` says so (tests/sharing.py). So a
new file is here or not by what it imports. A test that starts a program all the same fails here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.sharing import group_of, longest_first

ROOT = Path(__file__).parents[1]
STARTERS = frozenset(
    {
        "fanlog.bench",
        "multiprocessing",
        "playwright",
        "pyspark",
        "schemathesis",
        "subprocess",
        "tests.forking",
        "tests.servers",
    }
)
# It has fixtures for all tests; a test that takes one of them imports what that is made of.
_SHARED = ROOT / "tests" / "conftest.py"
_IMPORT = re.compile(r"^ *(?:from +([\w.]+) +import +([\w, ]*)|import +([\w.]+))", re.MULTILINE)
_STARTS = frozenset({"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"})


def is_fast(file: Path) -> bool:
    """Whether a test file is for quick runs."""
    name = file.relative_to(ROOT).as_posix()
    if group_of(name) in longest_first():
        return False
    shared = [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(ROOT)]
    return not any(one in STARTERS for one in _all_imports((file, *shared)))


def _all_imports(files: Iterable[Path]) -> Iterator[str]:
    """What these files import, and what the modules of tests import that are among it. A package
    comes with what is in it: `fanlog.bench.systems` is `fanlog` and `fanlog.bench`, too."""
    seen = {_SHARED}
    waiting = [*files]
    while waiting:
        file = waiting.pop()
        if file in seen or not file.exists():
            continue
        seen.add(file)
        for module in _imports(file):
            parts = module.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
            if parts[0] == "tests":
                waiting.append(ROOT.joinpath(*parts).with_suffix(".py"))


@cache
def _imports(file: Path) -> set[str]:
    """The modules that a file imports, wherever it does."""
    found: set[str] = set()
    for package, names, module in _IMPORT.findall(file.read_text(encoding="utf-8")):
        found.add(package or module)
        found |= {f"{package}.{name.strip()}" for name in names.split(",") if name.strip()}
    return found


def forbid_programs() -> None:
    """From now on, starting a program raises an error in this process."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            raise AssertionError(
                f"make test-fast runs nothing that starts programs, and this started "
                f"{arguments[:1]}. Its file must import what it starts programs with: see "
                "tests/fast.py."
            )

    sys.addaudithook(refuse)
