"""The glossary (docs/architecture.md, "Words"): the source uses each of its words. The words that
it replaces are neither names in the source nor words in the documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fanlog"
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

# Old words, and what to write instead.
REPLACED = {
    "burial": "dead letter",
    "doomed": "dead letter, or to remove",
    "grave": "dead letter",
    "lane": "queue partition",
    "place": "topic partition, position, row",
    "seat": "membership",
    "shelf": "batch cache",
    "spectator": "read-only log",
    "told": "notifier, notified",
    "verdict": "outcome",
}
# Forms of an old word that a plural "s" does not cover.
FORMS = {"bury": "burial", "buried": "burial", "burying": "burial", "shelves": "shelf"}
# Sentences of documents in which such a word is ordinary English.
ORDINARY = (
    "in place",  # to change something where it is
)


def glossary() -> list[str]:
    """The words of the glossary, without their meanings."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("\n## Words\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    return [
        term.strip() for row in rows if row not in ("word", "---") for term in row.split(",")
    ]  # fmt: skip


def words_of(name: str) -> list[str]:
    """The words of an identifier or a text, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ches", "xes", "shes")) else word.removesuffix("s")


def phrase(text: str) -> str:
    """A text as its words in the singular, with a space before, between and after them."""
    return f" {' '.join(singular(word) for word in words_of(text))} "


@cache
def trees() -> dict[Path, ast.Module]:
    """Every file of the source, parsed, by its path within the package."""
    return {
        path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


@cache
def names_by_file() -> dict[Path, frozenset[str]]:
    """The identifiers of each file of the source, with its own name and its folders' names."""
    return {
        path: frozenset({*path.with_suffix("").parts, *_defined(tree), *_used(tree)})
        for path, tree in trees().items()
    }


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def _used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
                yield name
            case _:
                pass


@cache
def source_phrases() -> str:
    """Every identifier and docstring of the source, as phrases one after another."""
    names = {name for names in names_by_file().values() for name in names}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = (
        ast.get_docstring(node) or ""
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, documented)
    )
    return "\n".join(map(phrase, (*sorted(names), *docstrings)))


def old_names() -> Iterator[tuple[str, str, Path]]:
    """Each old word in a name of the source: the word, the name and its file."""
    for path, tree in trees().items():
        defined = {*path.with_suffix("").parts, *_defined(tree)}
        for name in sorted(defined | {*_used(tree)}):
            for word in words_of(name):
                old = FORMS.get(word, singular(word))
                if old in REPLACED:
                    yield old, name, path


def without_code(text: str) -> str:
    """A document without its blocks of code, its spans of code and the addresses of its links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def test_the_source_uses_every_word_of_the_glossary() -> None:
    terms = glossary()
    assert len(terms) > 60
    phrases = source_phrases()
    unused = [term for term in terms if phrase(term) not in phrases]
    assert not unused, f"These words of the glossary are not in the source: {', '.join(unused)}."


def test_no_word_of_the_glossary_is_listed_twice() -> None:
    terms = glossary()
    assert sorted(terms) == sorted(set(terms))


def test_no_name_in_the_source_has_an_old_word() -> None:
    wrong = [f"{file}: {name} (write {REPLACED[old]})" for old, name, file in old_names()]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_has_no_old_word(document: Path) -> None:
    text = " ".join(without_code(document.read_text(encoding="utf-8")).split())
    for ordinary in ORDINARY:
        text = text.replace(ordinary, "")
    wrong = [
        f"…{text[max(0, found.start() - 40) : found.end() + 40]}… (write {REPLACED[old]})"
        for found in re.finditer(r"[A-Za-z]+", text)
        if (old := FORMS.get(found[0].lower(), singular(found[0].lower()))) in REPLACED
    ]
    assert not wrong, "\n".join(wrong)
