"""Classes of the client share by composition. A method that begins with an underscore belongs to
its class and its module: no class of another module overrides it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "fanlog"
# The embedded brokers are clients, too.
MODULES = (*sorted(SOURCE.glob("client/**/*.py")), SOURCE / "node.py", SOURCE / "embedded.py")
# A method that may be overridden elsewhere, by class and name, and why.
EXCEPTIONS = {
    ("ClientConnection", "_take_leave"): (
        "The connection does not know groups and queues, which leave before it closes."
    ),
    ("ClientOutbox", "_send"): (
        "A transaction's stager stages what a publisher sends, and shares all the rest of it."
    ),
}


@dataclass
class Found:
    """A class: where it is, its bases, and the private methods that it defines."""

    module: str
    bases: list[str]
    private: set[str] = field(default_factory=set[str])


def classes() -> dict[str, Found]:
    """By name: no two classes share one (`tests/test_class_names.py`)."""
    found: dict[str, Found] = {}
    for path in MODULES:
        module = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                one = found[node.name] = Found(module, [name_of(base) for base in node.bases])
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(
                        "_[^_]", method.name
                    ):
                        one.private.add(method.name)
    return found


def name_of(base: ast.expr) -> str:
    match base:
        case ast.Subscript(value=value):
            return name_of(value)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def ancestors(known: dict[str, Found], name: str) -> Iterator[str]:
    for base in known[name].bases if name in known else ():
        yield base
        yield from ancestors(known, base)


def overridden(known: dict[str, Found]) -> list[tuple[str, str, str]]:
    """The class, the method, and the class of another module whose method it was."""
    return [
        (name, method, base)
        for name, one in known.items()
        for base in dict.fromkeys(ancestors(known, name))
        if base in known and known[base].module != one.module
        for method in sorted(one.private & known[base].private)
    ]


def test_no_class_overrides_a_private_method_of_another_module() -> None:
    known = classes()
    assert {
        "Subscription",
        "GroupMember",
        "HandledMember",
        "Worker",
        "BlockingBroker",
    } <= known.keys()
    assert not [one for one in overridden(known) if (one[2], one[1]) not in EXCEPTIONS]


def test_an_overridden_private_method_is_found() -> None:
    known = {
        "Parent": Found("a.py", [], {"_wait", "_other"}),
        "Child": Found("a.py", ["Parent"], {"_wait"}),
        "Grandchild": Found("b.py", ["Child"], {"_wait", "_own"}),
    }
    assert overridden(known) == [
        ("Grandchild", "_wait", "Child"),
        ("Grandchild", "_wait", "Parent"),
    ]
