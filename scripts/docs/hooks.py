"""What the build of the site adds to docs/: pages made from the source, and documents that live
elsewhere in the repository. Law: no network, and nothing is written outside the site."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docs.api import missing_names
from scripts.docs.links import ADOPTED, SitePath, to_site
from scripts.docs.pages import generated_pages

ROOT = Path(__file__).parents[2]
_SOURCES: dict[SitePath, Path] = {site: path for path, site in ADOPTED.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    for site_path, text in generated_pages().items():
        files.append(File.generated(config, site_path, content=text))
    for path, site_path in ADOPTED.items():
        files.append(File.generated(config, site_path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links that leave docs/ at the page that the target has on the site."""
    del config, files
    site_path = page.file.src_uri
    source = _SOURCES.get(site_path, Path("docs") / site_path)
    rest = "".join(f"\n\n::: {name}" for name in missing_names(site_path))
    return to_site(markdown, source, site_path) + rest
