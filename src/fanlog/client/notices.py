"""Notices for a reader: its topic is missing, or its pattern leaves out the topic that it is named
after. Each notice comes once, in the log or to the reader's callback."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fanlog.errors import InvalidArgumentError
from fanlog.format.messages import Notice
from fanlog.model import MissingPolicy

logger = logging.getLogger("fanlog.client")

OnNotice = Callable[[str], None]


def missing_policy(given: str) -> MissingPolicy:
    """The policy, if it exists."""
    match given:
        case "wait" | "fail":
            return given
        case _:
            raise InvalidArgumentError(
                f"missing is {given!r}, but must be 'wait' or 'fail': it decides what a reader "
                "does if the topic does not exist."
            )


class Notices:
    """The notices of one reader. `on_notice` gets each sentence; without it they are logged."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._reported: set[Notice] = set()
        self.on_notice: OnNotice | None = None

    def take(self, notice: Notice, *, was_there: bool = False) -> None:
        """Gives the notice once. `was_there`: the topic existed, and was read."""
        if notice.kind == "missing" and was_there:
            self.left(notice.topic)
        elif notice not in self._reported:
            self._reported.add(notice)
            self._say(self._sentence(notice))

    def left(self, topic: str) -> None:
        """The followed topic was deleted. For patterns there is no notice, because they may lose
        many topics."""
        if topic == self._target:
            self._say(f"{topic} does not exist any more; waiting until it is created again.")

    def _say(self, sentence: str) -> None:
        if self.on_notice is None:
            logger.warning("%s", sentence)
        else:
            self.on_notice(sentence)

    def _sentence(self, notice: Notice) -> str:
        if notice.kind == "missing":
            return f"{notice.topic} does not exist yet; waiting for its first message."
        return (
            f"{self._target} does not include {notice.topic} itself; to read both, follow "
            f"{notice.topic} too."
        )
