"""A data engineer reads docs/spark.md: example data, a lake, the pipelines, a program."""

from __future__ import annotations

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


@pytest.mark.parametrize("pipeline", ["clean", "join", "replay", "rollup", "drops"])
def test_each_pipeline_runs_as_documented(user: User, pipeline: str) -> None:
    (line,) = [line for line in lines_of("Pipelines") if f"pipeline run {pipeline}" in line]
    user.types(line)


def test_a_pipeline_is_copied_and_changed(user: User) -> None:
    init, run = [line for line in lines_of("Pipelines") if "my-clean" in line]
    user.types(init)
    user.types(run)
    assert "orders.mine" in user.types("fanlog topic list")
