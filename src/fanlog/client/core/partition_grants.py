"""Which partitions a member of a group has, and what its application has to learn of it. The broker
grants and revokes; a shell calls the application, and asks the broker to take partitions back.

Law: the application learns of each partition in the order in which it came and went. A partition is
released only when the application knows that it goes, and has no message of it in hand.

| state       | meaning                                                                     |
| ----------- | --------------------------------------------------------------------------- |
| ELSEWHERE   | other members may have it                                                   |
| READ        | its messages are handed out                                                 |
| WANTED_BACK | the broker wants it back; nothing more of it is handed out                  |
| RELEASING   | the application knows that it goes; the broker gets it back                 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from fanlog.format.messages import Release
from fanlog.model import TopicPartition


class GrantState(Enum):
    ELSEWHERE = auto()
    READ = auto()
    WANTED_BACK = auto()
    RELEASING = auto()


class GrantChange(Enum):
    GRANT = auto()
    REVOKE = auto()
    NOTIFY = auto()
    RELEASE = auto()
    LOSE = auto()


_S, _C = GrantState, GrantChange

GRANT_TRANSITIONS: dict[GrantState, dict[GrantChange, GrantState]] = {
    # A revocation, or the answer to a release, may be overtaken by the loss.
    _S.ELSEWHERE: {
        _C.GRANT: _S.READ,
        _C.REVOKE: _S.ELSEWHERE,
        _C.RELEASE: _S.ELSEWHERE,
        _C.LOSE: _S.ELSEWHERE,
    },
    # It is granted again by a connection that came back, and when its position is moved.
    _S.READ: {
        _C.GRANT: _S.READ,
        _C.REVOKE: _S.WANTED_BACK,
        _C.RELEASE: _S.READ,
        _C.LOSE: _S.ELSEWHERE,
    },
    # A broker that was restarted does not know that it is on its way back.
    _S.WANTED_BACK: {
        _C.GRANT: _S.WANTED_BACK,
        _C.REVOKE: _S.WANTED_BACK,
        _C.NOTIFY: _S.RELEASING,
        _C.RELEASE: _S.WANTED_BACK,
        _C.LOSE: _S.ELSEWHERE,
    },
    _S.RELEASING: {
        _C.GRANT: _S.RELEASING,
        _C.REVOKE: _S.RELEASING,
        _C.RELEASE: _S.ELSEWHERE,
        _C.LOSE: _S.ELSEWHERE,
    },
}


class GrantStep(NamedTuple):
    """What the application has to learn next: partitions that `came`, or that go. The broker gets
    those of `releasing` back after that."""

    came: bool
    partitions: tuple[TopicPartition, ...]
    releasing: tuple[TopicPartition, ...] = ()


class PartitionGrants:
    """`in_hand` says whether the application works on something of a partition. `on_news` is called
    when there may be a step to take; `announces` is off if nobody has to learn of partitions
    that come."""

    def __init__(self, in_hand: Callable[[TopicPartition], bool], *, announces: bool) -> None:
        self._in_hand = in_hand
        self._announces = announces
        self._states: dict[TopicPartition, GrantState] = {}
        # What the application has not heard yet: a partition that came (True), or is gone.
        self._news: list[tuple[bool, TopicPartition]] = []
        self.on_news: Callable[[], None] | None = None
        # Those in state READ, and those on their way back.
        self.active: set[TopicPartition] = set()
        self.going: set[TopicPartition] = set()
        # Set when the member leaves: all its partitions go, and no further steps are taken.
        self.leaving = False

    def state(self, partition: TopicPartition) -> GrantState:
        return self._states.get(partition, GrantState.ELSEWHERE)

    def _change(self, partition: TopicPartition, change: GrantChange) -> bool:
        """Whether the state is another one now."""
        before = self.state(partition)
        after = GRANT_TRANSITIONS[before][change]
        if after is before:
            return False
        self.active.discard(partition)
        self.going.discard(partition)
        if after is GrantState.ELSEWHERE:
            del self._states[partition]
            return True
        self._states[partition] = after
        (self.active if after is GrantState.READ else self.going).add(partition)
        return True

    def look(self) -> None:
        """Something has changed that a step may wait for."""
        if not self.leaving and self.on_news is not None:
            self.on_news()

    # What the broker says

    def grant(self, partition: TopicPartition) -> bool:
        """Whether its messages have to wait until the application was notified of it."""
        if not self._change(partition, GrantChange.GRANT) or not self._announces:
            return False
        self._news.append((True, partition))
        self.look()
        return True

    def revoke(self, partition: TopicPartition) -> bool:
        """Whether its messages are held back from now on. A member that leaves gives all of them
        back anyway."""
        return not self.leaving and self._change(partition, GrantChange.REVOKE)

    def lose(self, partition: TopicPartition) -> None:
        """It already belongs to another member, or its topic is gone."""
        heard = self.state(partition) is GrantState.RELEASING
        if self._change(partition, GrantChange.LOSE) and not heard:
            self._news.append((False, partition))

    def lose_all(self) -> None:
        for partition in list(self._states):
            self.lose(partition)
        self.look()

    def released(self, release: Release) -> Iterator[TopicPartition]:
        """The broker's answer: the partitions that are not this member's any more."""
        for number in release.partitions:
            partition = TopicPartition(release.topic, number)
            if self._change(partition, GrantChange.RELEASE):
                yield partition

    # What the application learns

    def next_step(self) -> GrantStep | None:
        """The next step, or None if there is nothing to say, or something is still in hand."""
        if self.leaving:
            return None
        news = self._news
        if news and news[0][0]:
            return GrantStep(came=True, partitions=self._take_news())
        coming = {partition for came, partition in news if came}
        ready = [
            partition
            for partition, state in self._states.items()
            if state is GrantState.WANTED_BACK
            and partition not in coming
            and not self._in_hand(partition)
        ]
        gone = self._take_news() if news else ()
        if not ready and not gone:
            return None
        for partition in ready:
            self._change(partition, GrantChange.NOTIFY)
        return GrantStep(
            came=False, partitions=tuple(sorted({*ready, *gone})), releasing=tuple(ready)
        )

    def _take_news(self) -> tuple[TopicPartition, ...]:
        """The first news, and all of the same kind behind it."""
        kind = self._news[0][0]
        count = next((i for i, (came, _) in enumerate(self._news) if came is not kind), None)
        taken, self._news = self._news[:count], [] if count is None else self._news[count:]
        return tuple(partition for _, partition in taken)

    def heard(self, step: GrantStep) -> list[TopicPartition]:
        """The application knows that partitions came. Returns those whose messages need not
        wait any longer: one that was lost and came again meanwhile does."""
        return [partition for partition in step.partitions if (True, partition) not in self._news]

    # The end

    def leave(self) -> tuple[TopicPartition, ...]:
        """The member leaves. Returns the partitions that go, without those of which the application
        knows it already."""
        self.leaving = True
        heard = {p for p, state in self._states.items() if state is GrantState.RELEASING}
        gone = {partition for came, partition in self._news if not came}
        return tuple(sorted((self._states.keys() | gone) - heard))

    def left(self) -> None:
        """The application has heard it."""
        for partition in list(self.active):
            self._change(partition, GrantChange.LOSE)


def releases(partitions: tuple[TopicPartition, ...]) -> list[Release]:
    """The requests that give partitions back, one for each topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    return [Release(topic, tuple(numbers)) for topic, numbers in by_topic.items()]
