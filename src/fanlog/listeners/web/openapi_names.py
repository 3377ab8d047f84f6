"""How names, patterns and times look, as the OpenAPI document says it. The broker checks them."""

from __future__ import annotations

from typing import Any

from fanlog.format.dead_letters import ID_PATTERN
from fanlog.model import (
    DURABLE_NAME_BYTES_MAX,
    GROUP_PREFIX,
    INTERNAL_PREFIX,
    PARTITIONS_MAX,
    STREAM_PREFIX,
    TOPIC_NAME_BYTES_MAX,
)

# No wildcard, and no control character.
NAME_PATTERN = "^[^*>\\x00-\\x1f\\x7f-\\x9f]+$"
# `*` is one whole part between dots, `>` the rest at the end.
PATTERN_PATTERN = r"^((\*|[^*>.]*)\.)*(\*|>|[^*>.]*)$"
_UINT32 = "[0-4]?[0-9]{1,9}"
_ENTRY = rf"[0-4]?[0-9]{{1,3}}\.[0-9]{{1,18}}\.{_UINT32}"
_VECTOR = rf"[^:;,\s]+:{_UINT32}:{_ENTRY}(,{_ENTRY})*"
POSITION_PATTERN = rf"^([0-9]{{1,18}}\.{_UINT32}\.{_UINT32}|{_VECTOR}(;{_VECTOR})*)$"
# Of a resumable stream: it has one partition. Empty for its start.
STREAM_POSITION_PATTERN = rf"^([0-9]{{1,18}}\.{_UINT32}\.{_UINT32})?$"
# A topic's, or none.
NAME_OR_NONE_PATTERN = "^[^*>\\x00-\\x1f\\x7f-\\x9f]*$"
LETTER_ID_PATTERN = f"^{ID_PATTERN}$"
# Bytes that fit into a URL. Only the broker knows what they mean.
RECEIPT_PATTERN = "^[A-Za-z0-9_-]+$"
# Names of the broker's own topics, which nobody else changes.
NOT_INTERNAL: dict[str, Any] = {"not": {"pattern": f"^{INTERNAL_PREFIX.replace('.', '[.]')}"}}
GROUP_NAME_MAX = DURABLE_NAME_BYTES_MAX - len(GROUP_PREFIX)
STREAM_NAME_MAX = TOPIC_NAME_BYTES_MAX - len(STREAM_PREFIX)
_NAME: dict[str, Any] = {"type": "string", "minLength": 1}
# The parts of paths. Names are counted in bytes: here in characters, which are not more.
PATH_SCHEMAS: dict[str, dict[str, Any]] = {
    "topic": _NAME | {"maxLength": TOPIC_NAME_BYTES_MAX, "pattern": NAME_PATTERN},
    "partition": {"type": "integer", "minimum": 0, "maximum": PARTITIONS_MAX - 1},
    "connection": _NAME | {"maxLength": 64},
    "session": _NAME | {"maxLength": 64},
    "key": _NAME | {"maxLength": 255},
    # It is a part of the name of the user's topic.
    "user": _NAME | {"maxLength": 200, "pattern": NAME_PATTERN},
    "group": _NAME | {"maxLength": GROUP_NAME_MAX},
    "queue": _NAME | {"maxLength": GROUP_NAME_MAX},
    "name": _NAME | {"maxLength": STREAM_NAME_MAX, "pattern": NAME_PATTERN},
    "id": {"type": "string", "pattern": LETTER_ID_PATTERN},
    "task": _NAME | {"maxLength": 64, "pattern": "^[0-9a-z]+$"},
    "trace": {"type": "string", "pattern": "^[0-9a-fA-F]{32}$"},
    "transaction": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
    "schedule": _NAME | {"maxLength": 238, "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]+$"},
}
# One topic, or a pattern of several.
TARGET_SCHEMA: dict[str, Any] = _NAME | {
    "maxLength": TOPIC_NAME_BYTES_MAX,
    "pattern": PATTERN_PATTERN,
}
TIME_SCHEMAS: list[dict[str, Any]] = [
    {"format": "date-time"},
    {"pattern": "^[0-9]{1,4}(ms|s|m|h|d|w)$"},
]
START_SCHEMAS: list[dict[str, Any]] = [
    {"enum": ["earliest", "latest"]},
    {"pattern": "^[0-9]{1,18}$"},
    *TIME_SCHEMAS,
]
