"""docs/redis.md says what there is: every command, every setting that clients may ask for."""

from __future__ import annotations

import re
from pathlib import Path

from fanlog.config import RedisOptions
from fanlog.listeners.redis.commands import COMMANDS
from fanlog.listeners.redis.peer import REDIS_VERSION

DOCUMENT = (Path(__file__).parents[3] / "docs" / "redis.md").read_text(encoding="utf-8")


def test_every_command_is_in_the_table() -> None:
    table = DOCUMENT[DOCUMENT.index("## Commands") : DOCUMENT.index("## How it works")]
    words = set(re.findall(r"[A-Z-]+", table))
    for name, command in COMMANDS.items():
        assert name.upper() in words
        assert {part.upper() for part in command.subcommands} <= words


def test_every_option_it_names_is_one() -> None:
    named = set(re.findall(r"`redis\.(\w+)`", DOCUMENT))
    assert named
    assert named <= set(RedisOptions.__struct_fields__)
    assert REDIS_VERSION in DOCUMENT
