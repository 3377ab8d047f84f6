"""What an option of a pipeline may be, and the topics that it names."""

from __future__ import annotations

import pytest

from fanlog.errors import InvalidArgumentError
from fanlog.spark import pipelines
from fanlog.spark.pipelines import PipelineOption
from fanlog.spark.pipelines.kinds import OptionKind, check_value, wanted_topics

FITTING: list[tuple[OptionKind, str]] = [
    ("text", "?"),
    ("number", "0"),
    ("number", "134217728"),
    ("count", "1"),
    ("rate", "0.5"),
    ("interval", "1 minute"),
    ("interval", "1 hour 30 minutes"),
    ("pause", "now"),
    ("pause", "10 seconds"),
    ("time", "2026-01-31T12:00:00Z"),
    ("time", "2026-01-31"),
    ("flag", "yes"),
    ("truth", "false"),
    ("folder", "lake"),
    ("topic", "orders"),
    ("topics", "orders, payments"),
    ("topics", "orders.>"),
]
WRONG: list[tuple[OptionKind, str]] = [
    ("number", "-1"),
    ("number", "1.5"),
    ("number", "\u0663"),
    ("count", "0"),
    ("rate", "abc"),
    ("rate", "nan"),
    ("rate", "-1"),
    ("interval", "nonsense"),
    ("interval", "minute"),
    ("interval", "1 fortnight"),
    ("pause", "never"),
    ("time", "yesterday"),
    ("flag", "true"),
    ("truth", "yes"),
    ("folder", ""),
    ("topic", "orders.>"),
    ("topics", ","),
    ("topics", "orders.>,payments"),
]


@pytest.mark.parametrize(("kind", "value"), FITTING)
def test_a_value_that_fits(kind: OptionKind, value: str) -> None:
    check_value("some", PipelineOption("", default="x", kind=kind), value)


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_a_value_that_does_not_fit_is_told_with_what_would(kind: OptionKind, value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"The option 'some' is '.*': give \w+"):
        check_value("some", PipelineOption("", default="x", kind=kind), value)


def test_what_has_no_default_may_be_left_out() -> None:
    check_value("from", PipelineOption("", kind="time"), "")
    with pytest.raises(InvalidArgumentError):
        check_value("rate", PipelineOption("", default="10", kind="rate"), "")


@pytest.mark.parametrize("name", pipelines.names())
def test_the_defaults_of_every_pipeline_fit(name: str) -> None:
    for option, described in pipelines.find(name).options.items():
        check_value(option, described, described.default)


def test_the_topics_that_have_to_be_there() -> None:
    options = pipelines.find("archive").options
    values = {name: some.default for name, some in options.items()}
    assert wanted_topics(options, values | {"topics": "orders, payments"}) == ["orders", "payments"]
    assert wanted_topics(options, values | {"topics": "orders.>"}) == []
