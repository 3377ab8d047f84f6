"""No two modules of the source need each other, imports for types alone and within functions
included. import-linter checks the same between the packages of most parts (`pyproject.toml`)."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from tests.test_class_names import modules


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """The modules among `known` that a module imports, or imports something from."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                whole = {f"{module}.{one.name}" for one in names}
                found |= (whole & set(known)) or {module}
            case ast.Import(names=names):
                found |= {one.name for one in names}
            case _:
                pass
    return found & set(known)


def maybe_cycle(imports: dict[str, set[str]]) -> list[str] | None:
    """Modules of which each imports the one before it, and the first is the last."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as found:
        return found.args[1]
    return None


def test_no_modules_import_each_other() -> None:
    trees = {name_of(path): tree for path, tree in modules()}
    imports = {name: imported(tree, trees) - {name} for name, tree in trees.items()}
    assert sum(map(len, imports.values())) > 1000
    cycle = maybe_cycle(imports)
    assert cycle is None, (
        f"These import each other: {' <- '.join(cycle or ())}. Let one of them declare what it "
        "needs (typing.Protocol)."
    )


def test_a_cycle_is_found_also_where_an_import_is_for_types_or_in_a_function() -> None:
    types_only = "if TYPE_CHECKING:\n    from pkg.b import B"
    in_function = "def f():\n    from pkg import a"
    known = ["pkg", "pkg.a", "pkg.b"]
    imports = {
        "pkg.a": imported(ast.parse(types_only), known),
        "pkg.b": imported(ast.parse(in_function), known),
    }
    assert imports == {"pkg.a": {"pkg.b"}, "pkg.b": {"pkg.a"}}
    assert maybe_cycle(imports) is not None
    assert maybe_cycle({"pkg.a": {"pkg.b"}, "pkg.b": set()}) is None
