"""Links between the repository's documents. On GitHub they are paths of files; on the site, files
outside docs/ have pages of their own. Law: a link that leads nowhere is found, never dropped."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SitePath = str

_PIPELINES = Path("src/fanlog/spark/pipelines")
# Documents outside docs/ that the site shows as they are.
ADOPTED: dict[Path, SitePath] = {
    Path("CHANGELOG.md"): "project/changelog.md",
    Path("CONTRIBUTING.md"): "project/contributing.md",
    **{
        _PIPELINES / name / "README.md": f"pipelines/{name}.md"
        for name in ("archive", "clean", "drops", "join", "replay", "rollup")
    },
}
# Programs that the site shows with their source.
PROGRAMS: dict[Path, SitePath] = {Path("examples/chat.py"): "project/chat.md"}
# Pages that the build makes: documents in docs/ may link to them.
GENERATED: frozenset[SitePath] = frozenset(
    {
        "reference/commands.md",
        "reference/environment.md",
        "reference/errors.md",
        "reference/limits.md",
        "reference/settings.md",
        *PROGRAMS.values(),
    }
)
_PAGES: dict[Path, SitePath] = {**ADOPTED, **PROGRAMS, Path("README.md"): "index.md"}

_FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)")
_LINK = re.compile(r"(?P<before>\]\(|(?:src|href)=\")(?P<target>[^)\s\"]+)")
_HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *#*$", re.MULTILINE)
_ANCHOR = re.compile(r"(?:id|name)=\"(?P<id>[^\"]+)\"|\{ *#(?P<attribute>[\w-]+)")


def to_site(markdown: str, source: Path, site_path: SitePath) -> str:
    """The text of a document with its links as the site needs them. `source` is the document's path
    in the repository."""

    def moved(target: str) -> str:
        path, hash_, anchor = target.partition("#")
        if not path or _is_external(path):
            return target
        there = Path(os.path.normpath(source.parent / path))
        page = _PAGES.get(there)
        if page is None:
            if there.parts[0] != "docs":
                return target  # the build reports it
            page = there.relative_to("docs").as_posix()
        return os.path.relpath(page, Path(site_path).parent) + hash_ + anchor

    return _with_targets(markdown, moved)


def _with_targets(markdown: str, change: Callable[[str], str]) -> str:
    """The text with each link's target changed, and code left alone."""

    def outside_code(text: str) -> str:
        return _outside(_CODE, text, lambda plain: _LINK.sub(one, plain))

    def one(found: re.Match[str]) -> str:
        return found["before"] + change(found["target"])

    return _outside(_FENCE, markdown, outside_code)


def _outside(code: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    parts: list[str] = []
    end = 0
    for found in code.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(text[end:])])


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """A link of a document that leads nowhere."""

    document: Path
    target: str
    reason: str

    def __str__(self) -> str:
        return f"{self.document}: the link {self.target!r} leads nowhere: {self.reason}."


def broken_links(root: Path, document: Path) -> Iterator[BrokenLink]:
    """Links to files that are not there, and to headings that a file does not have. Of links to
    other hosts only the form is checked: no test asks the network."""
    targets: list[str] = []
    text = (root / document).read_text(encoding="utf-8")
    _with_targets(text, lambda target: targets.append(target) or target)
    for target in targets:
        reason = _fault(root, document, target)
        if reason:
            yield BrokenLink(document, target, reason)


def _fault(root: Path, document: Path, target: str) -> str:
    path, _, anchor = target.partition("#")
    if _is_external(path):
        good = re.fullmatch(r"(https?://[a-z0-9.-]+(:\d+)?(/\S*)?|mailto:\S+@\S+)", target)
        return "" if good else "this is not an address"
    file = root / document if not path else (root / document).parent / path
    if os.path.relpath(file, root / "docs") in GENERATED:
        return ""  # the build of the site checks its headings
    if not file.exists():
        return "there is no such file"
    if anchor and file.suffix == ".md" and anchor not in _anchors(file):
        return f"{file.name} has no such heading"
    return ""


def _is_external(path: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*:", path))


@cache
def _anchors(file: Path) -> set[str]:
    text = _FENCE.sub("", file.read_text(encoding="utf-8"))
    found = {slug(heading["title"]) for heading in _HEADING.finditer(text)}
    return found | {mark["id"] or mark["attribute"] for mark in _ANCHOR.finditer(text)}


def slug(title: str) -> str:
    """A heading's anchor, as GitHub makes it; mkdocs.yml asks for the same on the site."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
