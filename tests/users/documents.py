"""What a page tells its reader to type: the code blocks of a Markdown file, by section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HEADING = re.compile(r"#{1,6} +(.*)")
_FENCE = re.compile(r" *```+(\w*)")


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    section: str
    language: str
    text: str


class Page:
    """A page as a reader sees it, who looks for a section and takes its blocks in turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blocks = list(_blocks_of(name, (ROOT / name).read_text(encoding="utf-8")))

    def of(self, section: str, language: str) -> list[str]:
        """The texts of a section's blocks. That there are none is a fault of the page."""
        found = [b.text for b in self.blocks if b.section == section and b.language == language]
        known = sorted({b.section for b in self.blocks})
        assert found, f"{self.name} has no {language} in {section!r}; there is {known}"
        return found

    def one(self, section: str, language: str, containing: str = "") -> str:
        """The first block of a section that contains these words."""
        for text in self.of(section, language):
            if containing in text:
                return text
        raise AssertionError(f"{self.name}: no {language} in {section!r} has {containing!r}")


def _blocks_of(page: str, text: str) -> Iterator[Block]:
    section, language, lines = "", "", list[str]()
    inside = False
    for line in text.splitlines():
        if fence := _FENCE.match(line):
            if inside:
                yield Block(page, section, language, "\n".join(lines) + "\n")
            inside, language, lines = not inside, fence[1], []
        elif inside:
            lines.append(line)
        elif heading := _HEADING.match(line):
            section = heading[1]
