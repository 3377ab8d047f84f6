"""Why jobs died, in groups. Most reasons differ only in a number or an id: "order 17 not found" and
"order 18 not found" are one group, "order <n> not found"."""

from __future__ import annotations

import re
from functools import lru_cache

# A title is one line of a table.
TITLE_CHARACTERS_MAX = 160
NO_REASON = "(no reason given)"
# The group of all reasons above the limit.
OTHER_REASONS = "(other reasons)"

_WORKER = re.compile(r"(timed out in the hands of worker ).+")
_NUMBER = re.compile(
    r"\b(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|0x[0-9a-fA-F]+|(?=[a-fA-F]*[0-9][0-9a-fA-F]*[a-fA-F]|[a-fA-F]+[0-9])[0-9a-fA-F]{8,})\b"
    r"|([0-9]+(?:[.,:][0-9]+)*)"
)
_ERROR = re.compile(r"([A-Za-z_][\w.]{0,79})(?::|$)")


def _placeholder(found: re.Match[str]) -> str:
    return "<n>" if found.group(1) else "<id>"


@lru_cache(4096)
def group_of(reason: str) -> str:
    """The title of the group that a reason belongs to.

    >>> group_of("ValueError: order 17 is unknown")
    'ValueError: order <n> is unknown'
    >>> group_of("no user 6f1c2b9e-0d3f-4a55-9c1e-2b7a8d9e0f11")
    'no user <id>'
    """
    # Cut first: a reason may be thousands of characters long.
    line = reason[: 4 * TITLE_CHARACTERS_MAX].strip().partition("\n")[0]
    line = " ".join(line.split())
    if "worker" in line:
        line = _WORKER.sub(r"\1<name>", line)
    line = _NUMBER.sub(_placeholder, line)
    if len(line) > TITLE_CHARACTERS_MAX:
        line = line[: TITLE_CHARACTERS_MAX - 1] + "…"
    return line or NO_REASON


def error_of(title: str) -> str:
    """The error class at the start of a reason; empty if there is none.

    >>> error_of("ValueError: order <n> is unknown")
    'ValueError'
    >>> error_of("the mail server is down")
    ''
    """
    found = _ERROR.match(title)
    if found is None:
        return ""
    name = found.group(1)
    return name if any(part[:1].isupper() for part in name.split(".")) else ""
