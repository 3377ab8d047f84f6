"""The settings that can change while a broker runs: those with the mark `LIVE`, and the defaults of
new topics. A setting can have the mark if the broker reads it at each use. A setting that a part of
the broker copies or has opened needs a restart.

A running broker has its own copy of the settings, and all its parts read that copy. Only
`bring_up_to_date` changes it, on the loop, between two turns.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, cast

import msgspec
from msgspec import inspect

from fanlog.model import TopicSettings

LIVE: Final[dict[str, Any]] = {"live": True}


@cache
def live_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a section that can change while the broker runs."""
    if kind is TopicSettings:
        return kind.__struct_fields__
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return tuple(field.name for field in info.fields if is_live(field))


def is_live(field: inspect.Field) -> bool:
    if not isinstance(field.type, inspect.Metadata):
        return False
    extra = cast("dict[str, Any]", field.type.extra or {})  # pyright: ignore[reportUnknownMemberType]
    return bool(extra.get("live"))


def bring_up_to_date(held: msgspec.Struct, wanted: msgspec.Struct) -> bool:
    """Copies the live values of `wanted` into a section of a running broker. Returns whether a
    value has changed. The struct is frozen for all other code."""
    changed = False
    for name in live_fields(type(wanted)):
        value = getattr(wanted, name)
        if getattr(held, name) != value:
            msgspec.structs.force_setattr(held, name, value)
            changed = True
    return changed
