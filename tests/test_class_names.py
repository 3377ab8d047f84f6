"""One name, one thing: a reader who sees the name of a class or a type knows which one it is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


@cache
def modules() -> list[tuple[str, ast.Module]]:
    return [
        (str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(SOURCE.rglob("*.py"))
    ]


@cache
def classes_by_name() -> dict[str, list[str]]:
    """Where each class name of the source is defined, private and nested ones as well."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{module}:{node.lineno}")
    return found


@cache
def aliases_by_name() -> dict[str, list[str]]:
    """Where each top-level type alias is defined. Type variables are none. Nor are options of
    commands, which are `Annotated` for typer: two commands may have an option of the same name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in modules():
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    pass
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    pass
                case _:
                    continue
            is_type = name.strip("_")[:1].isupper() and not name.isupper()
            if is_type and not re.search(r"\btyper\.|\bTypeVar\(", ast.unparse(value)):
                found[name].append(f"{module}:{node.lineno}")
    return found


def shared_names(found: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(at)}" for name, at in sorted(found.items()) if len(at) > 1]


def test_no_two_classes_share_a_name() -> None:
    lines = shared_names(classes_by_name())
    assert not lines, "Rename all but one of each:\n" + "\n".join(lines)


def test_no_type_alias_shares_its_name_with_a_class_or_another_alias() -> None:
    classes = classes_by_name()
    found = {name: where + classes.get(name, []) for name, where in aliases_by_name().items()}
    lines = shared_names(found)
    assert not lines, "Import one of each where it is used, or rename:\n" + "\n".join(lines)


def test_the_search_sees_the_classes_and_aliases_of_the_source() -> None:
    found = classes_by_name()
    assert found["Broker"] == [where for where in found["Broker"] if "node.py" in where] != []
    assert len(found) > 500
    assert aliases_by_name()["Done"] == [
        where for where in aliases_by_name()["Done"] if "log/group_commit.py" in where
    ]
    assert len(aliases_by_name()) > 50
