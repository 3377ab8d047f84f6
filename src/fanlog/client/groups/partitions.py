"""The partitions of a group's member: which ones, how far the application is in each, and the
committed offsets. The broker gives them and takes them back; `attendant.py` tells the application.
Law: only messages that were read since the partition was assigned count. A position from before is
refused."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from fanlog.client.arguments import StartLike, as_start, checked
from fanlog.client.core.reached import Reached, as_claim, as_positions, reached
from fanlog.client.core.receiving import OnGap, Receiving
from fanlog.client.groups.attendant import OnPartitions, PartitionAttendant, called_back
from fanlog.client.groups.commits import GroupCommits
from fanlog.client.groups.progress import MemberProgress
from fanlog.client.message import Message, MessageBatch
from fanlog.errors import ConnectionLostError, FencedError, InvalidArgumentError
from fanlog.format import messages
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.messages import decode
from fanlog.model import TopicPartition

CommitMode = Literal["auto", "iterate", "manual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """What a member does by itself, and whom it tells."""

    commit: CommitMode = "auto"
    commit_interval_seconds: float = 1.0
    on_assign: OnPartitions | None = None
    on_revoke: OnPartitions | None = None
    on_gap: OnGap | None = None


class PartitionsHost(Protocol):
    """The client, as far as the partitions of a member need it."""

    @property
    def connected(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    async def ask(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        on_answer: Callable[[bytes], None] | None = None,
    ) -> bytes: ...


class OwnedPartitions:
    """The source of a member's messages. `active` are the partitions that it reads now."""

    def __init__(
        self,
        host: PartitionsHost,
        receiving: Receiving,
        group: str,
        options: MemberOptions,
        progress: MemberProgress | None = None,
    ) -> None:
        self._host = host
        self.receiving = receiving
        self.group = group
        self._options = options
        self._progress = progress or MemberProgress()
        self.commits = GroupCommits(self._send_commit, self._done, self._progress.has)
        self.attendant = PartitionAttendant(host, self, options.on_assign, options.on_revoke)
        self.active: set[TopicPartition] = set()
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
    def commits_by_itself(self) -> bool:
        return self._options.commit != "manual"

    # For the application

    def maybe_next(self) -> MessageBatch | None:
        receiving, progress = self.receiving, self._progress
        rest = progress.rest() if progress.begun else None
        progress.asked(receiving.current)
        receiving.current = None
        if rest is not None:
            progress.took(rest)
            return rest
        if self.attendant.revoking:
            self.attendant.soon()
        if self._options.commit == "iterate":
            self.commits.done_soon()
        return receiving.maybe_take(self)

    def run(self, batch: MessageBatch) -> Iterator[Message]:
        run = self._progress.run(batch)
        return self._watched(run) if self._options.commit == "iterate" else run

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
        """It is in hand until the next one is asked for, and so done with."""

    # How far it is

    def positions(self) -> tuple[messages.Position, ...]:
        return as_positions(self.reached(None))

    def reached(self, message: Message | None) -> dict[TopicPartition, Reached]:
        """What a commit now is of."""
        if message is None and called_back.get():
            return self._done()
        if message is None:
            return self._progress.taken(self.receiving.current)
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                f"commit takes a message of this member, or nothing, not {message!r}. To move "
                "to an offset, use seek()."
            )
        place = TopicPartition(message.topic, message.partition)
        self.check_read(place, message.offset + 1)
        return {place: reached(message.batch, message.offset + 1)}

    def check_read(self, place: TopicPartition, offset: int) -> None:
        """Refuses a position from before this member lost the partition and got it again: another
        member may have read it since, and uncommitted messages come again."""
        floor, reached = self._floors.get(place), self._progress.given(place)
        if floor is not None and reached is not None and not floor <= offset <= reached:
            raise FencedError(
                f"Partition {place[1]} of {place[0]!r} was taken from this member after it had "
                f"read up to offset {offset}, and given back to it at {floor}. No offsets were "
                "committed. Process the messages that it reads now."
            )

    def check_hand(self, places: Container[TopicPartition] | None = None) -> None:
        """Refuses to go on with what the application has in hand if its partition was lost: it is
        somebody else's now, or comes once more. With `places`, only if it is one of them."""
        lost = self._progress.lost_hand
        if lost is not None and (places is None or lost in places):
            raise FencedError(
                f"Partition {lost.partition} of {lost.topic!r} was taken from this member while "
                "it worked on a message of it. No offsets were committed; the new owner gets "
                "the message again. Continue with the next message."
            )

    def times_came(self, place: TopicPartition) -> int:
        """How often this member has got a partition that it has; 0 if it does not have it. So it
        can be told what was read before a loss from what was read since."""
        return self._came.get(place, 0) if self._progress.has(place) else 0

    def _done(self) -> dict[TopicPartition, Reached]:
        return self._progress.done(self.receiving.current)

    async def _send_commit(self, reached: dict[TopicPartition, Reached]) -> None:
        def committed(_: bytes) -> None:
            for place in reached.keys() & self._committed.keys():
                self._committed[place] = reached[place].offset

        wanted = messages.CommitOffsets("", as_positions(reached))
        await self._host.ask(FrameKind.COMMIT, wanted, aux=self.key, on_answer=committed)

    async def seek(
        self, start: StartLike, topic: str, partition: int | None
    ) -> tuple[messages.Position, ...]:
        """Moves in all partitions, in those of a topic, or in one."""
        partitions = None if partition is None else (partition,)
        wanted = messages.Seek(start=as_start(start), topic=topic, partitions=partitions)
        moved = await self._host.ask(FrameKind.SEEK, checked(wanted), aux=self.key)
        return decode(messages.Positions, moved).positions

    # What the broker gives

    def claims(self) -> tuple[messages.Claim, ...]:
        """What this member had on a connection before, to get it again."""
        self._continuing = set(self.active)
        return tuple(
            as_claim(self.receiving.position(place), self._committed.get(place, -1))
            for place in sorted(self.active | self.attendant.revoking.keys())
            if place in self.receiving.next
        )

    def placed(self, place: TopicPartition, start: Reached, last: Reached | None) -> None:
        receiving = self.receiving
        if place in self.attendant.revoking or receiving.arrivals.closed is not None:
            return  # A broker that was restarted does not know that it is on its way back.
        continued = place in self._continuing
        self._continuing.discard(place)
        self.commits.forget(place)
        receiving.epochs[place] = start.epoch
        if continued and last is not None:
            if (start.offset, start.number) == (last.offset, last.number):
                return
            receiving.partings.note(place, last, start)
            self.commits.parted(place)
            self._progress.disown_hand(place)
        receiving.next[place] = start.offset
        if place in self._came and place not in self.active:
            self._floors[place] = start.offset
        elif place in self._floors:
            self._floors[place] = min(self._floors[place], start.offset)
        if place in self.active and not continued:
            receiving.drop_queued(place)
            self._progress.drop_hand(place)
        self._progress.begin(place, start)
        receiving.muted.discard(place)
        if place not in self.active:
            self.active.add(place)
            self._came[place] = self._came.get(place, 0) + 1
            self._committed[place] = start.offset
            if self._options.on_assign is not None:
                # Not before `on_assign` is through.
                receiving.hold_back(place)
                self.attendant.came(place)

    def let_through(self, place: TopicPartition) -> None:
        self.receiving.let_through(place)

    def in_hand(self, place: TopicPartition) -> bool:
        """Whether the application works on something of a partition."""
        return self._progress.holds(place)

    # What the broker takes

    def left(self, topic: str) -> None:
        for place in [p for p in (*self.active, *self.attendant.revoking) if p[0] == topic]:
            self._lose(place)
        self.attendant.soon()

    def revoked(self, revoke: messages.Revoke) -> None:
        if revoke.lost:
            # At once: what is committed behind it is of what was read since.
            known = messages.Release(revoke.topic, revoke.partitions, lost=True)
            self._host.write(message_frame(FrameKind.RELEASE, known, aux=self.key))
        revoking = self.attendant.revoking
        for partition in revoke.partitions:
            place = TopicPartition(revoke.topic, partition)
            if place not in self.active and place not in revoking:
                continue
            if revoke.lost:
                self._lose(place)
            elif place not in revoking and not self.attendant.leaving:
                revoking[place] = False
                self.retire(place)
        self.attendant.soon()

    def _lose(self, place: TopicPartition) -> None:
        self.attendant.lost(place)
        self.retire(place)
        self.forget(place)

    def retire(self, place: TopicPartition) -> None:
        """Gives no more messages of a partition; those in hand still count."""
        self.active.discard(place)
        self.receiving.muted.add(place)
        self._continuing.discard(place)
        self.receiving.drop_queued(place)
        self._progress.cut(place)

    def forget(self, place: TopicPartition) -> None:
        self.receiving.forget(place)
        self._committed.pop(place, None)
        self._progress.forget(place)
        self.commits.forget(place)

    # The end

    def ended(self, *, lost: bool) -> None:
        """Messages here are not given out any more: other members will get them. `lost`: they
        already have the partition."""
        self.receiving.drop_all()
        self.receiving.muted.update(self.active)
        for place in list(self.active):
            self._progress.cut(place)
        if lost:
            self.attendant.lost_all()
            self.active.clear()

    async def leave(self) -> None:
        """Notifies the application, and commits the offsets of finished messages, unless commits
        are manual."""
        await self.attendant.finish()
        self.active.clear()
        if self._host.connected:
            await self.commits.flush(done=self.commits_by_itself)
        elif self.commits.owes(done=self.commits_by_itself):
            raise ConnectionLostError(
                "The connection was lost as the member left: the messages since its last "
                "offset commit will be delivered again."
            )
