"""The page of error codes, made from the tree in `fanlog.errors`. The docstring of a class says
what the error means, and after `What to do:` what the reader can do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from fanlog import errors
from fanlog.cli.exit_codes import exit_code_of
from fanlog.errors import FanlogError
from scripts.docs.tables import code, page, table

MARK = "What to do:"

_HEAD = """\
Every error that Fanlog raises, made from the source.

Each error is a class below `fanlog.FanlogError`, with a stable code. The code travels on the wire,
and the client raises the class that belongs to it. The message of an error says what happened and
what to do.

```python
import fanlog

try:
    await client.describe_topic("no.such.topic")
except fanlog.errors.TopicNotFoundError as error:
    print(error.code, error.message)
```

Catch a branch to catch all errors below it: `RequestError` for requests that can't be answered,
`LinkError` for everything that concerns the connection. The exit code is the one of `fanlog`
commands ([exit codes](commands.md#exit-codes))."""


@dataclass(frozen=True, slots=True)
class Described:
    """What an error's docstring says."""

    meaning: str
    remedy: str


def describe(kind: type[FanlogError]) -> Described:
    """The two parts of a docstring; empty where it has none of its own."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    meaning, _, remedy = text.partition(MARK)
    return Described(" ".join(meaning.split()), " ".join(remedy.split()))


def all_errors(root: type[FanlogError] = FanlogError) -> Iterator[type[FanlogError]]:
    """The tree, a class before those below it."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from all_errors(kind)


_TITLES = {
    errors.FormatError: "Formats",
    errors.RequestError: "Requests",
    errors.LimitError: "Limits",
    errors.StorageError: "Storage",
    errors.LinkError: "Connection",
}


def errors_page() -> str:
    """Every error, by branch."""
    parts = [_HEAD, "## All codes", _overview()]
    rest: list[type[FanlogError]] = [FanlogError]
    for branch in FanlogError.__subclasses__():
        if branch.__module__ != errors.__name__:
            continue
        if branch not in _TITLES:
            rest.append(branch)
            continue
        parts.append(f"## {_TITLES[branch]}")
        parts += [_error(kind) for kind in all_errors(branch)]
    parts.append("## Others")
    parts += [_error(kind) for kind in rest]
    return page("Error codes", *parts)


def _overview() -> str:
    kinds = sorted(all_errors(), key=lambda kind: kind.code)
    rows = (
        (f"[`{kind.code}`](#{kind.code})", code(kind.__name__), describe(kind).meaning)
        for kind in kinds
    )
    return table(("code", "class", "meaning"), rows)


def _error(kind: type[FanlogError]) -> str:
    said = describe(kind)
    bases = [base.__name__ for base in kind.__mro__[1:] if issubclass(base, FanlogError)]
    facts = [f"`fanlog.errors.{kind.__name__}`"]
    facts += [f"a `{bases[0]}`"] if bases else []
    facts.append(f"exit code {int(exit_code_of(kind('')))}")
    return "\n\n".join(
        [
            f"### `{kind.code}` {{ #{kind.code} }}",
            " · ".join(facts),
            said.meaning,
            f"**What to do:** {said.remedy}",
        ]
    )
