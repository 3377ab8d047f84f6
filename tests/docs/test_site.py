"""The documentation site: it builds without a warning, every link leads somewhere, every page is
made from what the code says, and a reader's browser asks no other host for anything."""

from __future__ import annotations

import html
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fanlog
from fanlog import config, errors
from fanlog.cli.options import all_options, options_of
from scripts.docs.commands_page import commands_page, root_command
from scripts.docs.errors_page import all_errors, describe, errors_page
from scripts.docs.examples import as_blocking, with_fences
from scripts.docs.links import GENERATED, broken_links, slug, to_site
from scripts.docs.pages import generated_pages
from scripts.docs.settings_pages import (
    FIXED_LIMITS,
    anchor,
    environment_page,
    fixed_limits,
    limits_page,
    settings_page,
)

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/*.md", "examples/*.md", "src/**/*.md")
    for path in ROOT.glob(pattern)
)
# What a browser loads by itself: scripts, styles, pictures, frames, fonts.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|embed|audio|video)\b[^>]*?\bsrc=[\"']?([^\"'\s>]+)"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?([^\"'\s>]+)"
)
_STYLED = re.compile(r"url\([\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it. Links and anchors that lead nowhere fail the build."""
    folder = tmp_path_factory.mktemp("site")
    sources = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "tutorial.html", "reference/settings.html", "protocol.html"} <= pages


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        found = (_LOADED if path.suffix == ".html" else _STYLED).finditer(text)
        loaded = [match[1] or match[2] for match in found]
        others = [url for url in loaded if re.match(r"(https?:)?//", url)]
        assert others == [], path
        # Material asks a public host for Mermaid as soon as a page has such a block.
        assert 'class="mermaid"' not in text, path
    assert len(list(site.rglob("*.html"))) > 20


def test_the_public_names_are_on_the_site(site: Path) -> None:
    pages = "".join(path.read_text("utf-8") for path in (site / "reference").rglob("*.html"))
    modules = {"errors", "sync", "testing"}
    elsewhere = {"Batch", "ClientOptions", "Config", "__version__"}
    for name in set(fanlog.__all__) - modules - elsewhere:
        assert f'id="fanlog.{name}"' in pages, f"{name} is on no page of docs/reference/api"
    for name in fanlog.sync.__all__:
        assert f'id="fanlog.sync.{name}"' in pages, f"sync.{name} is on no page"


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    assert [str(link) for link in broken_links(ROOT, document)] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## `fanlog` and Redis's\n")
    (tmp_path / "page.md").write_text(
        "[good](other.md#fanlog-and-rediss) [bad](other.md#nowhere) [gone](gone.md)\n"
        "[out](https://example.org/a) [typo](https:/example.org) [here](#not-here)\n"
        "`[code](not.there)`\n\n```md\n[block](not.there)\n```\n"
    )
    broken = [link.target for link in broken_links(tmp_path, Path("page.md"))]
    assert broken == ["other.md#nowhere", "gone.md", "https:/example.org", "#not-here"]


def test_the_pages_that_are_made_are_known_to_the_check_of_links() -> None:
    assert set(generated_pages()) == GENERATED


def test_links_out_of_the_folder_lead_to_pages_of_the_site() -> None:
    text = "[a](../CONTRIBUTING.md#commits) [b](groups.md) `[c](../x)` [d](#here)"
    moved = "[a](project/contributing.md#commits) [b](groups.md) `[c](../x)` [d](#here)"
    assert to_site(text, Path("docs/log.md"), "log.md") == moved
    adopted = to_site("[x](docs/log.md)", Path("CONTRIBUTING.md"), "project/contributing.md")
    assert adopted == "[x](../log.md)"


def test_anchors_are_those_of_github() -> None:
    assert slug("What is the same, what differs") == "what-is-the-same-what-differs"
    assert slug("`fanlog.toml` & [links](x.md)") == "fanlogtoml--links"


def test_every_setting_is_on_its_page() -> None:
    page = settings_page()
    for option in all_options().values():
        assert f'id="{anchor(option)}"' in page
        assert option.reason
        assert option.reason in page
    for struct, section in ((config.ClientOptions, "client"), (config.SparkOptions, "spark")):
        for option in options_of(struct, section):
            assert f'id="{anchor(option)}"' in page
            assert option.reason


def test_every_variable_is_on_its_page() -> None:
    page = environment_page()
    for option in all_options().values():
        assert f"`{option.variable}`" in page
    for variable in ("FANLOG_URL", "FANLOG_CONFIG", "FANLOG_DEBUG"):
        assert f"`{variable}`" in page


def test_every_limit_is_on_its_page() -> None:
    assert set(FIXED_LIMITS) == fixed_limits()
    page = limits_page()
    assert all(name in page for name in FIXED_LIMITS)
    assert "`broker.topics_max`" in page


@pytest.mark.parametrize("kind", list(all_errors()), ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_means_and_what_to_do(kind: type[errors.FanlogError]) -> None:
    said = describe(kind)
    assert said.meaning.endswith("."), "its docstring begins with what it means"
    assert said.remedy.endswith("."), "its docstring has a paragraph that begins `What to do:`"
    assert f"{{ #{kind.code} }}" in errors_page()


def test_every_command_and_option_is_on_its_page() -> None:
    page = commands_page()
    for command in root_command().walk():
        assert command.path in page
        assert command.help, command.path
        for option in command.options:
            assert f"`{option.opts[0]}`" in page
            assert option.help, f"{command.path} {option.opts[0]}"


def test_every_public_method_says_what_it_does(site: Path) -> None:
    """On the site: a method of `fanlog.sync` has the text of the asyncio method."""
    for page in ("asyncio", "broker", "sync", "typed", "messages"):
        text = (site / "reference" / "api" / f"{page}.html").read_text(encoding="utf-8")
        methods = re.split(r'<div class="doc doc-object doc-(?:function|method)">', text)[1:]
        assert methods
        for method in methods:
            name = re.search(r'id="([^"]+)"', method)
            words = re.sub(r"<[^>]+>|\s+", " ", method.partition("doc-contents")[2])
            assert len(words.split()) > 3, f"{name and name[1]} has no docstring"


def test_methods_of_the_blocking_client_have_their_signatures(site: Path) -> None:
    """Also those that are taken over from the asyncio client in one line."""
    text = (site / "reference" / "api" / "sync.html").read_text(encoding="utf-8")
    parts = re.split(r'<div class="doc doc-object doc-(\w+)">', text)
    shown = {
        found[1]: (kind, " ".join(html.unescape(re.sub(r"<[^>]+>", "", part)).split()))
        for kind, part in itertools.pairwise(parts)
        if (found := re.search(r'id="fanlog\.sync\.([\w.]+)"', part))
    }
    for name, signature in {
        "Client.publish": "publish( topic: str, value: Value, *, delay_seconds: float,",
        "Client.topics": "*, internal: bool = False) -> list[TopicInfo]",
        "Client.subscribe": 'policy: str = "catch-up"',
        "Client.transform": "transform( source: str, target: str, function: Function, *, group:",
        "Stream.append": "append(piece: T) -> Receipt",
        "StreamReader.messages": "messages() -> Iterator[Message]",
        "GroupMember.seek": 'seek( start: StartLike, topic: str = "",',
        "TypedGroupMember.seek": 'seek( start: StartLike, topic: str = "",',
    }.items():
        kind, said = shown[name]
        assert kind == "function"
        assert signature.replace(" ", "") in said.replace(" ", ""), said
    assert shown["Client.connected"][1].startswith("connected property")
    assert "-> BlockingSubscription" in shown["Client.subscribe"][1]
    assert not [name for name, (_, said) in shown.items() if re.search(r"\bawait \w+\.", said)]


def test_examples_of_the_asyncio_client_become_those_of_the_blocking_one() -> None:
    docstring = "Waits in `async with`.\n\n```python\nasync with a as b:\n    await b.c()\n```\n"
    blocking = "Waits in `with`.\n\n```python\nwith a as b:\n    b.c()\n```\n"
    assert as_blocking(docstring) == blocking


def test_examples_in_docstrings_become_blocks() -> None:
    docstring = "Says.\n\n>>> a = 1  # doctest: +SKIP\n>>> if a:\n...     a\n1\n\nMore.\n"
    blocks = "Says.\n\n```python\na = 1\nif a:\n    a\n# 1\n```\n\nMore.\n"
    assert with_fences(docstring) == blocks
