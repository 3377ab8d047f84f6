"""How far an application is in each of its partitions: finished messages, and those in hand. A
message, or a batch, is finished once the application has asked for the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import length_hint

from fanlog.client.core.reached import Reached, reached
from fanlog.client.message import Message, MessageBatch
from fanlog.model import TopicPartition


class MemberProgress:
    """`current` in what follows is the message in hand, where messages are taken one by one."""

    def __init__(self) -> None:
        self._done: dict[TopicPartition, Reached] = {}
        self._batch: MessageBatch | None = None
        self._run: Iterator[Message] | None = None
        self._cut = False
        # The partition of what is in hand, if it was lost since.
        self.lost_hand: TopicPartition | None = None

    def begin(self, tp: TopicPartition, start: Reached) -> None:
        self._done[tp] = start

    def forget(self, tp: TopicPartition) -> None:
        """The partition is somebody else's, or was left: what is in hand of it counts no more."""
        self._done.pop(tp, None)
        if self.holds(tp):
            self.lost_hand = tp
        self.drop_hand(tp)

    def drop_hand(self, tp: TopicPartition) -> None:
        if self.holds(tp):
            self.cut(tp)
            self._batch = self._run = None

    def disown_hand(self, tp: TopicPartition) -> None:
        """What is in hand of a partition is worked on to its end, and does not count."""
        if self.holds(tp):
            self._batch = None

    def has(self, tp: TopicPartition) -> bool:
        return tp in self._done

    def given(self, tp: TopicPartition) -> int | None:
        """Up to where the application was given a partition, what is in hand included."""
        batch = self._batch
        if batch is not None and self.holds(tp) and tp in self._done:
            return batch.next_offset
        done = self._done.get(tp)
        return None if done is None else done.offset

    def holds(self, tp: TopicPartition) -> bool:
        """Whether the application has something of this partition in hand."""
        batch = self._batch
        return batch is not None and (batch.topic, batch.partition) == tp

    # What the application does

    def took(self, batch: MessageBatch) -> None:
        self._batch = batch
        self._run = None
        self._cut = False

    def took_stale(self) -> None:
        """The application has something that is in no log any more."""
        self._batch = self._run = None
        self._cut = False

    def run(self, batch: MessageBatch) -> Iterator[Message]:
        """The batch in hand, message by message."""
        self._run = iter(batch.messages)
        return self._run

    @property
    def begun(self) -> bool:
        """Whether the batch in hand is taken message by message."""
        return self._run is not None

    def rest(self) -> MessageBatch | None:
        """What is left of a batch that was taken message by message, as one."""
        batch, run = self._batch, self._run
        left = 0 if run is None else length_hint(run)
        if batch is None or not left:
            return None
        self.cut(TopicPartition(batch.topic, batch.partition))
        return batch.from_record(batch.first + len(batch) - left)

    def cut(self, tp: TopicPartition) -> None:
        """Gives nothing more of a batch that was begun."""
        if self.holds(tp) and self._run is not None:
            # The iterating caller has this same iterator: when it is emptied, the iteration ends
            # too.
            deque(self._run, maxlen=0)
            self._cut = True

    def asked(self, current: Message | None) -> None:
        """The application asks for more: it has finished the messages in hand."""
        batch = self._batch
        self.lost_hand = None
        if batch is None:
            return
        if self._run is None:
            # All of it, and kept short: of those who take batches each comes by here.
            held = batch.batch
            tp = TopicPartition(held.topic_name, held.header.partition)
            if tp in self._done:
                self._done[tp] = reached(held, held.next_offset)
            self._batch = None
            return
        after = self._after_hand(current)
        if after is not None and self._batch is not None:
            self._done[TopicPartition(self._batch.topic, self._batch.partition)] = after
        self._batch = self._run = None

    # How far it is

    def done(self, current: Message | None) -> dict[TopicPartition, Reached]:
        """Up to what is in hand, which is not done yet."""
        done = self._done.copy()
        batch = self._batch
        if batch is not None and (batch.topic, batch.partition) in done:
            message = self._of_hand(current)
            offset = batch.base_offset if message is None else message.offset
            done[TopicPartition(batch.topic, batch.partition)] = reached(batch.batch, offset)
        return done

    def taken(self, current: Message | None) -> dict[TopicPartition, Reached]:
        """The same with what is in hand."""
        done = self._done.copy()
        batch, after = self._batch, self._after_hand(current)
        if batch is not None and after is not None:
            done[TopicPartition(batch.topic, batch.partition)] = after
        return done

    def _after_hand(self, current: Message | None) -> Reached | None:
        batch = self._batch
        if batch is None or (batch.topic, batch.partition) not in self._done:
            return None
        offset = batch.next_offset
        run = self._run
        if run is not None and (self._cut or length_hint(run)):
            message = self._of_hand(current)
            offset = batch.base_offset if message is None else message.offset + 1
        return reached(batch.batch, offset)

    def _of_hand(self, current: Message | None) -> Message | None:
        """The message, if it is of the batch in hand."""
        batch = self._batch
        if batch is None or current is None or current.batch is not batch.batch:
            return None
        return current
