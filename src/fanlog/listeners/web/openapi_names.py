"""How names, patterns and times look, as the OpenAPI document says it. The broker checks them."""

from __future__ import annotations

from typing import Any

# No wildcard, and no control character.
NAME_PATTERN = "^[^*>\\x00-\\x1f\\x7f-\\x9f]+$"
# `*` is one whole part between dots, `>` the rest at the end.
PATTERN_PATTERN = r"^((\*|[^*>.]*)\.)*(\*|>|[^*>.]*)$"
_UINT32 = "[0-4]?[0-9]{1,9}"
_ENTRY = rf"[0-4]?[0-9]{{1,3}}\.[0-9]{{1,18}}\.{_UINT32}"
_VECTOR = rf"[^:;,\s]+:{_UINT32}:{_ENTRY}(,{_ENTRY})*"
POSITION_PATTERN = rf"^([0-9]{{1,18}}\.{_UINT32}\.{_UINT32}|{_VECTOR}(;{_VECTOR})*)$"
TIME_SCHEMAS: list[dict[str, Any]] = [
    {"format": "date-time"},
    {"pattern": "^[0-9]{1,4}(ms|s|m|h|d|w)$"},
]
