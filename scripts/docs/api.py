"""The Python reference shows every public name. Pages in docs/reference/api put names where readers
look for them; a name that none of them has goes to the end of the page that is for the rest."""

from __future__ import annotations

import re
from pathlib import Path

import fanlog
import fanlog.sync
from scripts.docs.links import SitePath

_FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "api"
# Modules, and what other pages of the reference describe.
_ELSEWHERE = {"Batch", "ClientOptions", "Config", "__version__", "errors", "sync", "testing"}


def missing_names(site_path: SitePath) -> list[str]:
    """Public names that no page shows, if this is the page for them."""
    public = {
        "reference/api/types.md": [f"fanlog.{name}" for name in fanlog.__all__],
        "reference/api/sync.md": [f"fanlog.sync.{name}" for name in fanlog.sync.__all__],
    }
    return [name for name in public.get(site_path, ()) if name not in _shown()]


def _shown() -> set[str]:
    pages = "".join(path.read_text(encoding="utf-8") for path in _FOLDER.glob("*.md"))
    elsewhere = {f"fanlog.{name}" for name in _ELSEWHERE}
    return elsewhere | set(re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE))
