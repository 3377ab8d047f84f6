"""A griffe extension. Doctests in docstrings become Python blocks, as one would write them. Methods
of `fanlog.sync` and of typed classes that say nothing of their own get the docstring of the method
that they stand for; those that are taken over in one line (`publish = in_order(Client.publish)`)
get its signature, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import (
    AliasResolutionError,
    Attribute,
    Class,
    Docstring,
    ExprCall,
    Extension,
    Function,
    Module,
    Object,
)

_EXAMPLE = re.compile(r"(?:^[ ]*(?:>>>|\.\.\.).*\n?)+(?:^[ ]*[^\s>].*\n?)*", re.MULTILINE)
_PROMPT = re.compile(r"^(?:>>>|\.\.\.) ?", re.MULTILINE)
_DIRECTIVE = re.compile(r"[ ]*# doctest:.*$", re.MULTILINE)
_BLOCK = re.compile(r"^```python\n.*?^```", re.MULTILINE | re.DOTALL)
_ASYNCHRONOUS = re.compile(r"\b(?:await|async) ")
# What a blocking method says that has nothing of its own to say.
_SEE = "see the asyncio client"
# What takes a member over: see `fanlog.client.forwarding` and `fanlog.client.blocking.front`.
_TAKERS = {"passed", "shown", "blocking", "each", "posted", "fronted", "in_order", "_encoded"}
_ITERATED = re.compile(r"^Async(?:Iterator|Generator)\[(.*?)(?:, None)?\]$")
_QUOTED = re.compile(r"`(?:await|async) ")


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
            for found, twin in _twins(pkg):
                member = _taken_over(found, twin)
                text = member.docstring.value if member.docstring else ""
                if twin.docstring is None or not (_SEE in text or not text):
                    continue
                said = twin.docstring.value
                if ".blocking." in member.path:
                    # Fenced here as well: griffe may come to the twin later.
                    said = as_blocking(with_fences(said))
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


def _taken_over(member: Object, twin: Object) -> Object:
    """The member, with the signature of its twin if it is taken over."""
    if isinstance(member, Attribute) and _taker(member.value) in _TAKERS:
        return _in_place_of(member, twin)
    if isinstance(member, Function) and isinstance(twin, Function):
        takers = [_taker(decorator.value) for decorator in member.decorators]
        if "like" in takers:
            member.parameters = twin.parameters
            member.decorators = []
    return member


def _taker(value: object) -> str:
    """The name of the function that a value is made with."""
    return str(value.function) if isinstance(value, ExprCall) else ""


def _in_place_of(member: Attribute, twin: Object) -> Object:
    """What stands in the class instead of an attribute that takes its twin over."""
    parent = member.parent
    if isinstance(twin, Attribute):
        member.annotation = twin.annotation
        member.value = None
        member.labels = {*twin.labels}
        return member
    if not isinstance(twin, Function) or not isinstance(parent, Class):
        return member
    made = _function_like(twin, member)
    made.overloads = [_function_like(one, member) for one in twin.overloads or ()] or None
    parent.set_member(member.name, made)
    return made


def _function_like(twin: Function, member: Attribute) -> Function:
    returns = twin.returns
    if isinstance(member.value, ExprCall):
        arguments = [str(argument) for argument in member.value.arguments]
        if len(arguments) > 1:
            returns = arguments[1]
        elif ".blocking." in member.path:
            returns = _ITERATED.sub(r"Iterator[\1]", str(returns))
    return Function(
        member.name,
        parameters=twin.parameters,
        returns=returns,
        lineno=member.lineno,
        endlineno=member.endlineno,
        parent=member.parent,
        runtime=True,
    )


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
    blocks = _BLOCK.sub(lambda block: _ASYNCHRONOUS.sub("", block[0]), docstring)
    return _QUOTED.sub("`", blocks)
