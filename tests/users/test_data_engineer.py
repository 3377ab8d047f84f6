"""A data engineer reads docs/spark.md: example data, a lake, the pipelines, a program."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.users.documents import Page
from tests.users.user import User

SPARK = Page("docs/spark.md")


def lines_of(section: str) -> list[str]:
    """The commands of a section, one by one, without what is said about them."""
    (block,) = SPARK.of(section, "sh")[:1]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [shlex.join(words) for words in commands if words]


@pytest.fixture(scope="module", autouse=True)
def broker(user: User) -> None:
    install, serve, *_ = SPARK.of("Five minutes", "sh")[0].splitlines()
    user.types(install)
    serving = user.leaves_running(serve.removesuffix("&"))
    serving.wait_for("Try it, in two other terminals")


def test_a_lake_in_five_minutes(user: User) -> None:
    for line in SPARK.of("Five minutes", "sh")[0].splitlines()[2:]:
        said = user.types(line)
    assert "archive" in said
    assert list((user.home / "lake").rglob("*.parquet"))


def test_the_program_counts_and_copies(user: User) -> None:
    said = user.runs(SPARK.one("Five minutes", "python", "fanlog.spark.session"))
    assert "notebook" in said
    assert "orders.copy" in user.types("fanlog topic list")


def test_a_rollup_shows_windows_in_time_order(user: User) -> None:
    """The other pipelines are run as documented by tests/spark/pipelines/test_documented.py."""
    (line,) = [line for line in lines_of("Pipelines") if "pipeline run rollup" in line]
    user.types(line)
    rows = user.types("fanlog tail rollup --from earliest --no-follow --values-only").splitlines()
    windows = [json.loads(row) for row in rows]
    assert len(windows) > 50
    assert [w["start"] for w in windows] == sorted(w["start"] for w in windows)
    assert all(w["records"] > 0 for w in windows)
    assert not [row for row in rows if re.search(r"\dE\d", row)]
