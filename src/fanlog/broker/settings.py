"""Settings that clients change by name: those of a topic, and those of a queue. An error names the
invalid setting and its allowed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from fanlog.errors import InvalidArgumentError

S = TypeVar("S", bound=msgspec.Struct)
Given = Mapping[str, int | float | str | bool]


def changed(what: str, settings: S, given: Given) -> S:
    """The settings with what is given in place of theirs."""
    kind = type(settings)
    unknown = set(given) - set(kind.__struct_fields__)
    if unknown:
        raise InvalidArgumentError(
            f"There is no {what} setting {min(unknown)!r}; there are "
            f"{', '.join(kind.__struct_fields__)}."
        )
    before = msgspec.structs.asdict(settings)
    for name, value in given.items():
        try:
            msgspec.convert({**before, name: value}, kind)
        except msgspec.ValidationError as fault:
            raise InvalidArgumentError(
                f"The {what} setting {name} can't be {value!r}: {_allowed(kind, name, fault)}."
            ) from fault
    return msgspec.convert({**before, **given}, kind)


def _allowed(kind: type[msgspec.Struct], name: str, fault: msgspec.ValidationError) -> str:
    hint = get_type_hints(kind)[name]
    if get_origin(hint) is Literal:
        words = [word or "empty" for word in get_args(hint)]
        return f"use {', '.join(words[:-1])} or {words[-1]}"
    # Without the path, which is the setting's name once more.
    sentence = str(fault).partition(" - at ")[0].replace("`", "")
    bound = _BOUND.fullmatch(sentence)
    if bound:
        return f"give a number of {bound[2]} or {_BOUND_WORDS[bound[1]]}"
    return sentence[0].lower() + sentence[1:]


_BOUND = re.compile(r"Expected (?:int|float) (>=|<=) ([\d.]+)")
_BOUND_WORDS = {">=": "more", "<=": "less"}
