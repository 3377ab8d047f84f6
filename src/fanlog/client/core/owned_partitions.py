"""The partitions of a group's member: which ones, how far the application is in each, and the
committed offsets. The broker gives them and takes them back; `partition_grants.py` says what the
application learns of it, and `offset_commits.py` what is committed.

Law: only messages that were read since the partition was granted count. A position from before is
refused."""

from __future__ import annotations

from collections.abc import Container, Iterator

from fanlog.client.arguments import StartLike, as_start, checked
from fanlog.client.core.member_progress import MemberProgress
from fanlog.client.core.offset_commits import CommitMode, OffsetCommits, ReachedPositions
from fanlog.client.core.partition_grants import GrantState, PartitionGrants
from fanlog.client.core.reached import Reached, as_claim, as_positions, reached
from fanlog.client.core.receiving import Receiving, ReceivingHost
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import ConnectionLostError, FencedError, InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind, message_frame
from fanlog.model import TopicPartition


class OwnedPartitions:
    """The source of a member's messages. With `announces`, messages of a new partition wait until
    the application has heard of it."""

    def __init__(
        self,
        host: ReceivingHost,
        receiving: Receiving,
        group: str,
        *,
        commit: CommitMode = "auto",
        announces: bool = False,
        progress: MemberProgress | None = None,
    ) -> None:
        self._host = host
        self.receiving = receiving
        self.group = group
        self._commit = commit
        self._progress = progress or MemberProgress()
        self.commits = OffsetCommits(self._done, self._progress.has)
        self.grants = PartitionGrants(self._progress.holds, announces=announces)
        self._continuing: set[TopicPartition] = set()
        # How often each partition came, and where those began that came again, after this member
        # had lost or released them.
        self._came: dict[TopicPartition, int] = {}
        self._floors: dict[TopicPartition, int] = {}
        # Committed offsets, as far as this member knows: where it began, or its last commit.
        self._committed: dict[TopicPartition, int] = {}

    @property
    def key(self) -> int:
        return self.receiving.key

    @property
    def active(self) -> set[TopicPartition]:
        """What it reads now."""
        return self.grants.active

    @property
    def commits_by_itself(self) -> bool:
        return self._commit != "manual"

    # For the application

    def maybe_next(self) -> MessageBatch | None:
        receiving, progress = self.receiving, self._progress
        rest = progress.rest() if progress.begun else None
        progress.asked(receiving.current)
        receiving.current = None
        if rest is not None:
            progress.took(rest)
            return rest
        if self.grants.going:
            # It may have had something of them in hand.
            self.grants.look()
        if self._commit == "iterate":
            self.commits.done_soon()
        return receiving.maybe_take(self)

    def run(self, batch: MessageBatch) -> Iterator[Message]:
        run = self._progress.run(batch)
        return self._watched(run) if self._commit == "iterate" else run

    def _watched(self, run: Iterator[Message]) -> Iterator[Message]:
        for message in run:
            self.receiving.current = message
            self.commits.done_soon()
            yield message

    def took(self, batch: MessageBatch) -> None:
        if self.receiving.partings.is_stale(batch.batch):
            self._progress.took_stale()
        else:
            self._progress.took(batch)
        self.receiving.window.free(batch.batch.header.length)

    def unreadable(self, batch: MessageBatch) -> None:
        """It is in hand until the application takes the next one, and is finished then."""

    # How far it is

    def positions(self) -> tuple[messages.Position, ...]:
        """What a commit outside of callbacks would be of."""
        return as_positions(self.reached(None))

    def reached(self, message: Message | None, *, in_callback: bool = False) -> ReachedPositions:
        """The positions that a commit now would store: after all messages taken, including the
        message in hand. A callback may run while that message is processed: there it does not
        count."""
        if message is None and in_callback:
            return self._done()
        if message is None:
            return self._progress.taken(self.receiving.current)
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                f"commit takes a message of this member, or nothing, not {message!r}. To move "
                "to an offset, use seek()."
            )
        tp = TopicPartition(message.topic, message.partition)
        self.check_read(tp, message.offset + 1)
        return {tp: reached(message.batch, message.offset + 1)}

    def check_read(self, tp: TopicPartition, offset: int) -> None:
        """Refuses a position from before this member lost the partition and got it again: another
        member may have read it since, and uncommitted messages come again."""
        floor, reached = self._floors.get(tp), self._progress.given(tp)
        if floor is not None and reached is not None and not floor <= offset <= reached:
            raise FencedError(
                f"Partition {tp[1]} of {tp[0]!r} was taken from this member after it had "
                f"read up to offset {offset}, and given back to it at {floor}. No offsets were "
                "committed. Process the messages that it reads now."
            )

    def check_hand(self, tps: Container[TopicPartition] | None = None) -> None:
        """Raises if the partition of the message in hand was lost: another member has it now, or it
        comes once more. With `tps`, only if it is one of them."""
        lost = self._progress.lost_hand
        if lost is not None and (tps is None or lost in tps):
            raise FencedError(
                f"Partition {lost.partition} of {lost.topic!r} was taken from this member while "
                "it worked on a message of it. No offsets were committed; the new owner gets "
                "the message again. Continue with the next message."
            )

    def times_came(self, tp: TopicPartition) -> int:
        """How often this member has got a partition that it has; 0 if it does not have it. It tells
        messages that were read before a loss from those that were read since."""
        return self._came.get(tp, 0) if self._progress.has(tp) else 0

    def _done(self) -> ReachedPositions:
        return self._progress.done(self.receiving.current)

    # Its requests

    def commit_request(self, positions: ReachedPositions) -> messages.CommitOffsets:
        return messages.CommitOffsets("", as_positions(positions))

    def committed(self, positions: ReachedPositions) -> None:
        """The broker's answer to it."""
        self.commits.stored(positions)
        for tp in positions.keys() & self._committed.keys():
            self._committed[tp] = positions[tp].offset

    def seek_request(self, start: StartLike, topic: str, partition: int | None) -> messages.Seek:
        """Moves in all partitions, in those of a topic, or in one."""
        partitions = None if partition is None else (partition,)
        wanted = messages.Seek(start=as_start(start), topic=topic, partitions=partitions)
        return checked(wanted)

    def offsets_for_commit(
        self, positions: tuple[messages.Position, ...]
    ) -> tuple[messages.Position, ...]:
        """These, for a transaction to commit. Raises if they are not this member's any more."""
        self.check_hand([TopicPartition(p.topic, p.partition) for p in positions])
        for position in positions:
            self.check_read(TopicPartition(position.topic, position.partition), position.offset)
        return positions

    # What the broker gives

    def claims(self) -> tuple[messages.Claim, ...]:
        """What this member had on a connection before, to get it again."""
        self._continuing = set(self.active)
        return tuple(
            as_claim(self.receiving.position(tp), self._committed.get(tp, -1))
            for tp in sorted(self.active | self.grants.going)
            if tp in self.receiving.next
        )

    def positioned(self, tp: TopicPartition, start: Reached, last: Reached | None) -> None:
        receiving = self.receiving
        if tp in self.grants.going or receiving.arrivals.closed is not None:
            return
        continued = tp in self._continuing
        self._continuing.discard(tp)
        self.commits.forget(tp)
        receiving.epochs[tp] = start.epoch
        if continued and last is not None:
            if (start.offset, start.number) == (last.offset, last.number):
                return
            receiving.partings.note(tp, last, start)
            self.commits.parted(tp)
            self._progress.disown_hand(tp)
        receiving.next[tp] = start.offset
        if tp in self._came and tp not in self.active:
            self._floors[tp] = start.offset
        elif tp in self._floors:
            self._floors[tp] = min(self._floors[tp], start.offset)
        if tp in self.active and not continued:
            receiving.drop_queued(tp)
            self._progress.drop_hand(tp)
        self._progress.begin(tp, start)
        receiving.muted.discard(tp)
        if tp not in self.active:
            self._came[tp] = self._came.get(tp, 0) + 1
            self._committed[tp] = start.offset
        if self.grants.grant(tp):
            receiving.hold_back(tp)

    # What the broker takes

    def left(self, topic: str) -> None:
        for tp in [p for p in (*self.active, *self.grants.going) if p[0] == topic]:
            self._lose(tp)
        self.grants.look()

    def revoked(self, revoke: messages.Revoke) -> None:
        if revoke.lost:
            # At once: commits that follow are about messages that were read since.
            known = messages.Release(revoke.topic, revoke.partitions, lost=True)
            self._host.write(message_frame(FrameKind.RELEASE, known, aux=self.key))
        for partition in revoke.partitions:
            tp = TopicPartition(revoke.topic, partition)
            if revoke.lost:
                if self.grants.state(tp) is not GrantState.ELSEWHERE:
                    self._lose(tp)
            elif self.grants.revoke(tp):
                self.retire(tp)
        self.grants.look()

    def released(self, release: messages.Release) -> None:
        """The broker has taken back what was released."""
        for tp in self.grants.released(release):
            self.forget(tp)

    def _lose(self, tp: TopicPartition) -> None:
        self.grants.lose(tp)
        self.retire(tp)
        self.forget(tp)

    def retire(self, tp: TopicPartition) -> None:
        """Gives no more messages of a partition; those in hand still count."""
        self.receiving.muted.add(tp)
        self._continuing.discard(tp)
        self.receiving.drop_queued(tp)
        self._progress.cut(tp)

    def forget(self, tp: TopicPartition) -> None:
        self.receiving.forget(tp)
        self._committed.pop(tp, None)
        self._progress.forget(tp)
        self.commits.forget(tp)

    # The end

    def ended(self, *, lost: bool) -> None:
        """Messages here are not given out any more: other members will get them. `lost`: they
        already have the partition."""
        self.receiving.drop_all()
        self.receiving.muted.update(self.active)
        for tp in list(self.active):
            self._progress.cut(tp)
        if lost:
            self.grants.lose_all()

    def check_all_committed(self) -> None:
        """Raises if the member leaves without a connection, and offset commits are missing."""
        if self.commits.owes(done=self.commits_by_itself):
            raise ConnectionLostError(
                "The connection was lost as the member left: the messages since its last "
                "offset commit will be delivered again."
            )
