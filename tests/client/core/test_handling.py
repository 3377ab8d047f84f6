"""What follows when a handler fails with a message. The desk itself: `test_member_core.py`."""

from __future__ import annotations

from typing import get_args

import pytest

from fanlog.client.core.handling import FailureStep, OnFailure, after_failure


@pytest.mark.parametrize("on_failure", get_args(OnFailure))
@pytest.mark.parametrize("is_dead_letter", [False, True])
def test_a_message_is_tried_again_until_its_attempts_are_used_up(
    on_failure: OnFailure, is_dead_letter: bool
) -> None:
    steps = [after_failure(n, 3, on_failure, is_dead_letter=is_dead_letter) for n in (1, 2, 3)]
    assert [step is FailureStep.RETRY for step in steps] == [True, True, False]


@pytest.mark.parametrize("on_failure", get_args(OnFailure))
def test_without_a_limit_a_message_is_tried_for_ever(on_failure: OnFailure) -> None:
    assert after_failure(10**6, None, on_failure, is_dead_letter=False) is FailureStep.RETRY


@pytest.mark.parametrize(
    ("on_failure", "is_dead_letter", "step"),
    [
        ("stop", False, FailureStep.STOP),
        ("stop", True, FailureStep.STOP),
        ("skip", False, FailureStep.SKIP),
        ("skip", True, FailureStep.SKIP),
        ("dead-letter", False, FailureStep.DEAD_LETTER),
        ("dead-letter", True, FailureStep.LEAVE),
    ],
)
def test_after_the_last_attempt_the_option_decides(
    on_failure: OnFailure, is_dead_letter: bool, step: FailureStep
) -> None:
    assert after_failure(5, 5, on_failure, is_dead_letter=is_dead_letter) is step
