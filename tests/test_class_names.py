"""One name, one class: a reader who sees a class name knows which class it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def classes_by_name() -> dict[str, list[str]]:
    """Where each class name of the source is defined, private and nested ones as well."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return found


def test_no_two_classes_share_a_name() -> None:
    shared = {name: where for name, where in classes_by_name().items() if len(where) > 1}
    lines = [f"{name}: {', '.join(where)}" for name, where in sorted(shared.items())]
    assert not lines, "Rename all but one of each:\n" + "\n".join(lines)


def test_the_search_sees_the_classes_of_the_source() -> None:
    found = classes_by_name()
    assert found["Broker"] == [where for where in found["Broker"] if "node.py" in where] != []
    assert len(found) > 500
