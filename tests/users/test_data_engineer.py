"""A data engineer reads docs/spark.md: example data, a lake, a program. The pipelines of the page
are run by tests/spark/pipelines/test_documented.py."""

from __future__ import annotations

import pytest

from tests.users.documents import Page
from tests.users.user import User

SPARK = Page("docs/spark.md")


@pytest.fixture(scope="module", autouse=True)
def broker(user: User) -> None:
    install, serve, *_ = SPARK.of("Five minutes", "sh")[0].splitlines()
    user.types(install)
    serving = user.leaves_running(serve.removesuffix("&"))
    serving.wait_for("Try it, in two other terminals")


@pytest.mark.long
def test_a_lake_in_five_minutes(user: User) -> None:
    for line in SPARK.of("Five minutes", "sh")[0].splitlines()[2:]:
        said = user.types(line)
    assert "archive" in said
    assert list((user.home / "lake").rglob("*.parquet"))


@pytest.mark.long
def test_the_program_counts_and_copies(user: User) -> None:
    said = user.runs(SPARK.one("Five minutes", "python", "fanlog.spark.session"))
    assert "notebook" in said
    assert "orders.copy" in user.types("fanlog topic list")
