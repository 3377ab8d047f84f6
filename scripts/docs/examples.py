"""A griffe extension. Doctests in docstrings become Python blocks, as one would write them. Methods
of `fanlog.sync` and of typed classes that say nothing of their own get the docstring of the method
that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import AliasResolutionError, Docstring, Extension, Module, Object

_EXAMPLE = re.compile(r"(?:^[ ]*(?:>>>|\.\.\.).*\n?)+(?:^[ ]*[^\s>].*\n?)*", re.MULTILINE)
_PROMPT = re.compile(r"^(?:>>>|\.\.\.) ?", re.MULTILINE)
_DIRECTIVE = re.compile(r"[ ]*# doctest:.*$", re.MULTILINE)
_BLOCK = re.compile(r"^```python\n.*?^```", re.MULTILINE | re.DOTALL)
_ASYNCHRONOUS = re.compile(r"\b(?:await|async) ")
# What a blocking method says that has nothing of its own to say.
_SEE = "see the asyncio client"


class FencedExamples(Extension):
    """Changes docstrings as they are loaded."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Called by griffe when all of a package is loaded."""
        del kwargs
        if pkg.name == "fanlog":
            for member, twin in _twins(pkg):
                text = member.docstring.value if member.docstring else ""
                if twin.docstring is None or not (_SEE in text or not text):
                    continue
                said = twin.docstring.value
                if ".blocking." in member.path:
                    said = as_blocking(said)
                member.docstring = Docstring(said, parent=member, lineno=member.lineno)


def _twins(pkg: Module) -> Iterator[tuple[Object, Object]]:
    """Members of the classes that stand for others, each with the member that it stands for."""
    pairs = [(f"Typed{name}", name) for name in ("Subscription", "GroupMember", "Job", "Worker")]
    pairs += [(f"sync.{name}", name) for name in pkg["sync"].members if name in pkg.members]
    for name, original in pairs:
        try:
            ours, theirs = _target(pkg[name]), _target(pkg[original])
        except (AliasResolutionError, KeyError):
            continue
        if not ours.is_class or not theirs.is_class:
            continue
        for member_name, member in ours.all_members.items():
            twin = theirs.all_members.get(member_name)
            if twin is not None and not member_name.startswith("_"):
                yield _target(member), _target(twin)


def _target(member: Any) -> Object:
    return member.final_target if member.is_alias else member


def with_fences(docstring: str) -> str:
    """The docstring with each doctest as a fenced block, what it prints as comments."""
    return _EXAMPLE.sub(_fenced, docstring)


def _fenced(found: re.Match[str]) -> str:
    lines: list[str] = []
    for line in found[0].splitlines():
        code = _PROMPT.match(line.lstrip())
        stripped = _DIRECTIVE.sub("", line.lstrip()) if code else line.strip()
        lines.append(_PROMPT.sub("", stripped) if code else f"# {stripped}")
    return "```python\n" + "\n".join(lines) + "\n```\n"


def as_blocking(docstring: str) -> str:
    """A docstring with its blocks as one writes them for the blocking client."""
    return _BLOCK.sub(lambda block: _ASYNCHRONOUS.sub("", block[0]), docstring)
