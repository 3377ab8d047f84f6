"""The map of the source (docs/architecture.md): every file and folder that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "fanlog"


def named_paths(text: str) -> list[str]:
    """The paths of files and folders between backquotes, without patterns."""
    spans = re.findall(r"`([A-Za-z0-9_/.*]+)`", text)
    return [one for one in spans if one.endswith((".py", ".js", "/")) and "*" not in one]


def is_there(named: str, known: list[str]) -> bool:
    """Whether a file or folder has this path, or one that ends so: a document leaves out what its
    reader knows from the sentence."""
    return (ROOT / named).exists() or any(f"/{path}".endswith(f"/{named}") for path in known)


def test_every_path_in_the_architecture_exists() -> None:
    known = [
        str(path.relative_to(SOURCE.parent)) + "/" * path.is_dir() for path in SOURCE.rglob("*")
    ]
    paths = named_paths(DOCUMENT.read_text(encoding="utf-8"))
    assert len(paths) > 150
    missing = [named for named in dict.fromkeys(paths) if not is_there(named, known)]
    assert not missing, f"docs/architecture.md names what is not there: {', '.join(missing)}"


def test_every_package_is_in_the_table_of_layers() -> None:
    table = DOCUMENT.read_text(encoding="utf-8").split("\n| package | holds")[1].split("\n\n")[0]
    packages = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert len(packages) > 10
    missing = [name for name in packages if f"`{name}/`" not in table]
    assert not missing, f"Add to the table of layers: {', '.join(missing)}"


def test_a_path_is_known_by_its_end_and_not_by_a_part_of_a_name() -> None:
    known = ["fanlog/broker/messages/turns.py", "fanlog/log/"]
    assert is_there("messages/turns.py", known)
    assert is_there("log/", known)
    assert not is_there("urns.py", known)
    assert not is_there("state/turns.py", known)
    assert named_paths("`a/b.py` and `config*.py`, `Turns`, `a.b()`, `log/`") == ["a/b.py", "log/"]
