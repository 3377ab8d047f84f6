"""The pages of the site that are made from the source."""

from __future__ import annotations

import ast
from pathlib import Path

from scripts.docs.commands_page import commands_page
from scripts.docs.errors_page import errors_page
from scripts.docs.links import PROGRAMS, SitePath
from scripts.docs.settings_pages import environment_page, limits_page, settings_page

ROOT = Path(__file__).parents[2]


def generated_pages() -> dict[SitePath, str]:
    """Each page's text, by its place on the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/environment.md": environment_page(),
        "reference/errors.md": errors_page(),
        "reference/limits.md": limits_page(),
        "reference/settings.md": settings_page(),
        **{site_path: program_page(path) for path, site_path in PROGRAMS.items()},
    }


def program_page(path: Path) -> str:
    """A program with its docstring as the text above it."""
    source = (ROOT / path).read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    return f"# {path}\n\n{text}\n\n```python\n{source}```\n"
