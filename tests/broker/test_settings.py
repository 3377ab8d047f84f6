"""Settings by name: what is wrong is said of the one that is, with what it may be."""

from __future__ import annotations

import pytest

from fanlog.broker.settings import Given, changed
from fanlog.errors import InvalidArgumentError
from fanlog.model import QueueSettings, TopicSettings


def test_what_is_given_takes_the_place_of_what_was_there() -> None:
    settings = changed("topic", TopicSettings(partitions=3), {"durability": "fsync"})
    assert (settings.partitions, settings.durability) == (3, "fsync")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"cleanup": "compacted"}, "cleanup can't be 'compacted': use delete or compact."),
        ({"durability": "ssd"}, "durability can't be 'ssd': use memory, os or fsync."),
        ({"role": "x"}, "role can't be 'x': use empty, dead-letter, inbox or stream."),
        ({"durability": "os", "partitions": 0}, "can't be 0: give a number of 1 or more."),
        ({"partitions": "4"}, "partitions can't be '4': expected int, got str."),
        ({"colour": 1}, "no topic setting 'colour'; there are partitions,"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_may_be(given: Given, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        changed("topic", TopicSettings(), given)
    assert sentence in str(caught.value)
    assert "$" not in str(caught.value)


def test_a_queues_settings_are_answered_alike() -> None:
    with pytest.raises(InvalidArgumentError, match="reset can't be 'first': use earliest, latest"):
        changed("queue", QueueSettings(), {"reset": "first"})
