"""A module is about one thing, and fits in a reader's head. One that is longer than most, and a
class with more state than most, say why."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_class_names import modules

SOURCE = Path(__file__).parents[1] / "src"
LINES_MAX = 400
FIELDS_MAX = 20
WHY_LONG = re.compile(r"\bis long because\b")
WHY_FIELDS = re.compile(r"\bfields,? because\b")
# What a record holds is a list by itself: settings, frames, answers, rows.
RECORDS = re.compile(r"\b(Struct|NamedTuple|TypedDict|Protocol|dataclass)\b")


def text_of(node: ast.Module | ast.ClassDef) -> str:
    return " ".join((ast.get_docstring(node) or "").split())


def lines_of(path: str) -> int:
    return (SOURCE / path).read_text(encoding="utf-8").count("\n")


def is_record(node: ast.ClassDef) -> bool:
    return any(RECORDS.search(ast.unparse(one)) for one in (*node.bases, *node.decorator_list))


def fields_of(node: ast.ClassDef) -> set[str]:
    """Everything that a method sets on `self`, and what the body of the class declares."""
    found: set[str] = set()
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                if "ClassVar" not in ast.unparse(kind):
                    found.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for inner in ast.walk(statement):
                    match inner:
                        case ast.Attribute(ast.Name("self"), attr=name, ctx=ast.Store()):
                            found.add(name)
                        case _:
                            pass
            case _:
                pass
    return found


def test_a_long_module_says_why() -> None:
    silent = [
        f"{path}: {lines_of(path)} lines"
        for path, tree in modules()
        if lines_of(path) > LINES_MAX and not WHY_LONG.search(text_of(tree))
    ]
    assert not silent, (
        "Split each by subject, or say in its docstring that it is long because …:\n"
        + "\n".join(silent)
    )


def test_a_class_with_many_fields_says_why() -> None:
    silent = [
        f"{path}:{node.lineno}: {node.name} has {len(fields_of(node))} fields"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if not is_record(node) and len(fields_of(node)) > FIELDS_MAX
        if not WHY_FIELDS.search(text_of(node))
    ]
    assert not silent, (
        "Split each by subject, or say in its docstring that it has many fields because …:\n"
        + "\n".join(silent)
    )


def test_a_reason_goes_when_a_module_is_not_long_any_more() -> None:
    outdated = [
        path
        for path, tree in modules()
        if WHY_LONG.search(text_of(tree)) and lines_of(path) <= LINES_MAX * 3 // 4
    ]
    assert not outdated, f"These are short: {', '.join(outdated)}"


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("class A:\n    x: int\n    y: ClassVar[int] = 1", {"x"}),
        ("class A:\n    def f(self):\n        self.x, self.y = 1, self.z", {"x", "y"}),
        ("class A:\n    def f(self):\n        self.x.y = 1", set[str]()),
    ],
)
def test_fields_are_what_is_declared_or_set(code: str, fields: set[str]) -> None:
    node = ast.parse(code).body[0]
    assert isinstance(node, ast.ClassDef)
    assert fields_of(node) == fields
