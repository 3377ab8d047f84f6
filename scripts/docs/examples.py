"""A griffe extension: examples in docstrings become Python blocks. Docstrings have doctests, which
editors show well; the site shows the code as one would write it."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"(?:^[ ]*(?:>>>|\.\.\.).*\n?)+(?:^[ ]*[^\s>].*\n?)*", re.MULTILINE)
_PROMPT = re.compile(r"^(?:>>>|\.\.\.) ?", re.MULTILINE)
_DIRECTIVE = re.compile(r"[ ]*# doctest:.*$", re.MULTILINE)


class FencedExamples(Extension):
    """Changes docstrings as they are loaded."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)


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
