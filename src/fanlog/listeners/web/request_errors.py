"""Errors about a parameter, a body or an operation, with the allowed values.

msgspec names the wrong field or value. These sentences add the existing names, so that the user of
a client needs no manual.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from fanlog.errors import wrong_value

_CHOICES = ("Invalid enum value", "Invalid value")
_UNKNOWN = "Object contains unknown field"


def explained(fault: msgspec.ValidationError, kind: inspect.Type, meant: str = "") -> str:
    """What msgspec said of a value that is not of this kind, with the values or fields that are
    known at that place. `meant` is the tag that the value has, if its kind is one of several."""
    said = str(fault)
    sentence = wrong_value(said).replace("invalid enum value", "invalid value")
    known = dict.fromkeys(_known(said, kind, meant))
    return f"{sentence}; known: {', '.join(known)}" if known else sentence


def _known(said: str, kind: inspect.Type, meant: str) -> list[str]:
    if not said.startswith((*_CHOICES, _UNKNOWN)):
        return []
    _, _, path = said.partition(" - at `$")
    found = _parts([kind])
    if meant:
        found = [part for part in found if _tag(part) == meant] or found
    for name in path.rstrip("`").replace("[", ".[").split(".")[1:]:
        found = [inner for outer in _parts(found) for inner in _inside(outer, name)]
    parts = _parts(found)
    if not said.startswith(_UNKNOWN):
        return [str(value) for part in parts for value in _values(part)]
    structs = [part for part in parts if isinstance(part, inspect.StructType)]
    # Of several kinds nobody knows here which one was meant.
    if len({struct.cls for struct in structs}) != 1:
        return []
    return [given.encode_name for given in structs[0].fields]


def _values(kind: inspect.Type) -> list[Any]:
    if isinstance(kind, inspect.LiteralType):
        return list(kind.values)
    if isinstance(kind, inspect.EnumType):
        return [member.value for member in kind.cls]
    return []


def _tag(kind: inspect.Type) -> str | int | None:
    return kind.tag if isinstance(kind, inspect.StructType) else None


def _parts(found: list[inspect.Type]) -> list[inspect.Type]:
    """The types, without what is around them."""
    parts: list[inspect.Type] = []
    for kind in found:
        if isinstance(kind, inspect.UnionType):
            parts += _parts(list(kind.types))
        elif isinstance(kind, inspect.Metadata):
            parts += _parts([kind.type])
        else:
            parts.append(kind)
    return parts


def _inside(outer: inspect.Type, name: str) -> list[inspect.Type]:
    """The types that a field, an entry of a dictionary or of a list may have."""
    if isinstance(outer, inspect.StructType):
        if name == outer.tag_field:
            return [inspect.LiteralType((outer.tag,))] if outer.tag is not None else []
        return [given.type for given in outer.fields if given.encode_name == name]
    if isinstance(outer, inspect.DictType):
        return [outer.value_type]
    if isinstance(outer, inspect.ListType):
        return [outer.item_type]
    return []
