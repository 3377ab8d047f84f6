"""A member of a consumer group: a subscription whose partitions the broker chooses, and takes back
when others come. Law: a partition is let go only when the application has nothing of it in hand,
and after what it is done with is committed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol

import msgspec

from fanlog.client.arguments import StartLike, as_start, checked
from fanlog.client.groups.commits import GroupCommits
from fanlog.client.groups.progress import MemberProgress
from fanlog.client.message import Message, MessageBatch
from fanlog.client.reached import Reached, as_positions, reached
from fanlog.client.subscription import Item, OnGap, Subscription, SubscriptionHost
from fanlog.errors import (
    ClosedError,
    ConnectionLostError,
    FanlogError,
    FencedError,
    InvalidArgumentError,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.messages import decode
from fanlog.model import TopicPartition

logger = logging.getLogger("fanlog.client")

CommitMode = Literal["auto", "iterate", "manual"]
# Releases on their way to the broker: well below what a connection may ask at a time.
_RELEASES_AT_ONCE = 256
OnPartitions = Callable[[tuple[TopicPartition, ...]], Awaitable[None] | None]

# Whether `on_assign` or `on_revoke` is what runs: the application may be busy with a message then.
_called_back: ContextVar[bool] = ContextVar("called_back", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """What a member does by itself, and whom it tells."""

    commit: CommitMode = "auto"
    commit_interval_seconds: float = 1.0
    on_assign: OnPartitions | None = None
    on_revoke: OnPartitions | None = None
    on_gap: OnGap | None = None


class MemberHost(SubscriptionHost, Protocol):
    """The client, as far as a member needs it."""

    @property
    def connected(self) -> bool: ...
    async def ask(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        on_answer: Callable[[bytes], None] | None = None,
    ) -> bytes: ...


class GroupMember(Subscription):
    """Made by `client.consume(...)`; use it with `async with`, then iterate.

    >>> async with client.consume("orders", group="billing") as orders:  # doctest: +SKIP
    ...     async for message in orders:
    ...         bill(message.json())
    """

    def __init__(
        self,
        host: MemberHost,
        key: int,
        wanted: messages.JoinGroup,
        options: MemberOptions,
        progress: MemberProgress | None = None,
    ) -> None:
        followed = messages.Subscribe(
            target=wanted.target, wildcard=wanted.wildcard, window_bytes=wanted.window_bytes
        )
        super().__init__(host, key, followed, options.on_gap)
        self._broker = host
        self._join = wanted
        self._options = options
        self._progress = progress or MemberProgress()
        self._commits = GroupCommits(self._send_commit, self._done, self._progress.has)
        self._active: set[TopicPartition] = set()
        self._continuing: set[TopicPartition] = set()
        # Where partitions began that came again, after this member had lost or released them.
        self._had: set[TopicPartition] = set()
        self._floors: dict[TopicPartition, int] = {}
        # Being let go: False until the application is told.
        self._revoking: dict[TopicPartition, bool] = {}
        self._assigned: list[TopicPartition] = []
        self._gone: list[TopicPartition] = []
        # What has come of partitions whose `on_assign` is not through yet.
        self._opening: dict[TopicPartition, list[MessageBatch]] = {}
        self._attendant: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        # From its last words on: all that it has goes with it, and it is told of nothing more.
        self._leaving = False

    # The life of it

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._join.group

    @property
    def member(self) -> str:
        """Name of this member."""
        return self._join.member

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """What this member reads now, as topics and partitions."""
        return tuple(sorted(self._active))

    async def start(self) -> None:
        """Joins the group. `async with` does it.

        >>> orders = client.consume("orders", group="billing")
        >>> await orders.start()
        """
        if not self._started:
            self._commits.start()
            await super().start()
            # It may be over before it began: what ends it can come right behind the answer.
            if self._options.commit == "auto" and self._closed is None:
                self._timer = asyncio.create_task(self._commit_now_and_then())

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_seconds)
            self._commits.done_soon()

    async def close(self) -> None:
        """Commits what is done, unless commits are manual, and leaves the group. Raises what a
        commit in the background ran into.

        >>> await orders.close()
        """
        if self._closed is None:
            self.end(ClosedError("The member was closed: call consume() again."))
            if self._started:
                try:
                    await self._last_words()
                finally:
                    await self._host.detach(self)
        self._commits.raise_error()

    async def _last_words(self) -> None:
        # Another one may have begun before the wait for this one is over.
        while (attendant := self._attendant) is not None and not attendant.done():
            if attendant is asyncio.current_task():
                break
            if not self._broker.connected:
                attendant.cancel()
            await asyncio.wait([attendant])
        self._leaving = True
        told = [place for place, told in self._revoking.items() if told]
        mine = sorted((self._active | self._revoking.keys()) - set(told))
        await self._tell(self._options.on_revoke, mine)
        self._active.clear()
        by_itself = self._options.commit != "manual"
        if self._broker.connected:
            await self._commits.flush(done=by_itself)
        elif self._commits.owes(done=by_itself):
            raise ConnectionLostError(
                "The connection was lost as the member left: what it was done with since its "
                "last commit will be delivered again."
            )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except FanlogError as fault:
            if error is None:
                raise
            logger.warning("leaving the group %s: %s", self.group, fault)

    def end(self, error: FanlogError) -> None:
        """No more will come, and what is here is not given any more: others will get it."""
        super().end(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._items.clear()
        self._opening.clear()
        self._muted.update(self._active)
        for place in list(self._active):
            self._progress.cut(place)
        if not isinstance(error, ClosedError):
            self._gone += self._active
            self._active.clear()
            self._revoking.clear()
            self._attend_soon()

    # Receiving

    async def _next_batch(self) -> MessageBatch:
        progress = self._progress
        rest = progress.rest() if progress.begun else None
        progress.asked(self._current)
        self._current = None
        if rest is not None:
            progress.took(rest)
            return rest
        if self._revoking:
            self._attend_soon()
        if self._options.commit == "iterate":
            self._commits.done_soon()
        # Past the next coroutine where one is not needed: every batch comes by here.
        if self._items and (batch := self._take_item()) is not None:
            return batch
        return await super()._next_batch()

    def _took(self, batch: MessageBatch) -> None:
        if self._partings.is_stale(batch.batch):
            self._progress.took_stale()
        else:
            self._progress.took(batch)
        self._free(batch.batch.header.length)

    async def _next_run(self) -> Iterator[Message]:
        run = self._progress.run(await self._next_batch())
        return self._watched(run) if self._options.commit == "iterate" else run

    def _watched(self, run: Iterator[Message]) -> Iterator[Message]:
        for message in run:
            self._current = message
            self._commits.done_soon()
            yield message

    # Committing

    @property
    def positions(self) -> tuple[messages.Position, ...]:
        """What `commit()` would commit."""
        return as_positions(self.reached(None))

    def offsets_for_commit(
        self, positions: tuple[messages.Position, ...] | None = None
    ) -> messages.GroupOffsets:
        """These positions, or those of all that was taken, for a transaction to commit.

        >>> tx.commit_offsets(orders)
        """
        if positions is None:
            positions = self.positions
        for position in positions:
            self._check_read(TopicPartition(position.topic, position.partition), position.offset)
        return messages.GroupOffsets(self.group, self.member, self._join.epoch, positions)

    async def commit(self, message: Message | None = None) -> None:
        """Commits up to this message, or all that was taken, the one in hand included; in a
        callback, which may come while that one is worked on, all but it. Returns when it is done.
        Raises FencedError if a partition is somebody else's by now; then nothing was committed.

        >>> async for message in orders:
        ...     await orders.commit(message)
        """
        await self._commits.now(self.reached(message))

    def commit_soon(self, message: Message | None = None) -> None:
        """The same in the background. What goes wrong is raised by the next commit or close.

        >>> orders.commit_soon()
        """
        self.commit_reached_soon(self.reached(message))

    async def commit_reached(self, reached: dict[TopicPartition, Reached]) -> None:
        """Commits these places, which the application has read. Returns when it is done."""
        for place, at in reached.items():
            self._check_read(place, at.offset)
        await self._commits.now(reached)

    def commit_reached_soon(self, reached: dict[TopicPartition, Reached]) -> None:
        self._commits.soon(reached)

    def reached(self, message: Message | None) -> dict[TopicPartition, Reached]:
        """What a commit now is of."""
        if message is None and _called_back.get():
            return self._done()
        if message is None:
            return self._progress.taken(self._current)
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                f"commit takes a message of this member, or nothing, not {message!r}. To move to "
                "an offset there is seek()."
            )
        place = TopicPartition(message.topic, message.partition)
        self._check_read(place, message.offset + 1)
        return {place: reached(message.batch, message.offset + 1)}

    def _check_read(self, place: TopicPartition, offset: int) -> None:
        """Refuses a position that was reached before this member lost the partition and got it
        again: others may have been there since, and what was not committed comes once more."""
        floor, reached = self._floors.get(place), self._progress.given(place)
        if floor is not None and reached is not None and not floor <= offset <= reached:
            raise FencedError(
                f"Partition {place[1]} of {place[0]!r} was taken from this member after it had "
                f"read up to offset {offset}, and given back to it at {floor}. Nothing was "
                "committed; what counts is what it reads now."
            )

    def _done(self) -> dict[TopicPartition, Reached]:
        return self._progress.done(self._current)

    async def _send_commit(self, reached: dict[TopicPartition, Reached]) -> None:
        wanted = messages.CommitOffsets("", as_positions(reached))
        await self._broker.ask(FrameKind.COMMIT, wanted, aux=self.key)

    async def seek(
        self, start: StartLike, topic: str = "", partition: int | None = None
    ) -> tuple[messages.Position, ...]:
        """Moves in all partitions of this member, in those of a topic, or in one: to "earliest",
        "latest", an offset or a time. What was received before is not given any more, and the
        next commit is of the new place.

        >>> await orders.seek("earliest", topic="orders", partition=0)
        """
        await self.start()
        partitions = None if partition is None else (partition,)
        wanted = messages.Seek(start=as_start(start), topic=topic, partitions=partitions)
        moved = await self._broker.ask(FrameKind.SEEK, checked(wanted), aux=self.key)
        return decode(messages.Positions, moved).positions

    # From the link

    def opening(self) -> tuple[FrameKind, msgspec.Struct]:
        return FrameKind.JOIN_GROUP, self._join

    def resuming(self) -> tuple[FrameKind, msgspec.Struct]:
        super().resuming()
        self._continuing = set(self._active)
        claims = tuple(
            messages.Position(
                *place,
                self._next[place],
                epoch=self._epochs.get(place, 0),
                number=self._numbers.get(place[0], 0),
            )
            for place in sorted(self._active | self._revoking.keys())
            if place in self._next
        )
        wanted = msgspec.structs.replace(self._join, claims=claims, missing="wait", start=None)
        return FrameKind.JOIN_GROUP, wanted

    def opened(self, payload: bytes) -> None:
        epoch = decode(messages.GroupJoined, payload).epoch
        self._join = msgspec.structs.replace(self._join, epoch=epoch)

    def _place(self, place: TopicPartition, start: Reached, last: Reached | None) -> None:
        if place in self._revoking or self._closed is not None:
            return  # A broker that was restarted does not know that it is on its way back.
        continued = place in self._continuing
        self._continuing.discard(place)
        self._commits.forget(place)
        self._epochs[place] = start.epoch
        if continued and last is not None:
            if (start.offset, start.number) == (last.offset, last.number):
                return
            self._partings.note(place, last, start)
            self._commits.parted(place)
            self._progress.disown_hand(place)
        self._next[place] = start.offset
        if place in self._had and place not in self._active:
            self._floors[place] = start.offset
        elif place in self._floors:
            self._floors[place] = min(self._floors[place], start.offset)
        self._had.add(place)
        if place in self._active and not continued:
            self._drop_queued(place)
            self._progress.drop_hand(place)
        self._progress.begin(place, start)
        self._muted.discard(place)
        if place not in self._active:
            self._active.add(place)
            if self._options.on_assign is not None:
                self._assigned.append(place)
                self._opening[place] = []
                self._attend_soon()

    def _put(self, item: Item) -> None:
        if self._opening and isinstance(item, MessageBatch):
            waiting = self._opening.get(TopicPartition(item.topic, item.partition))
            if waiting is not None:
                waiting.append(item)
                return
        super()._put(item)

    def left(self, left: messages.Left) -> None:
        super().left(left)
        for place in [p for p in (*self._active, *self._revoking) if p[0] == left.name]:
            self._lose(place)
        self._attend_soon()

    def revoked(self, revoke: messages.Revoke) -> None:
        if revoke.lost:
            # At once: what is committed behind it is of what was read since.
            known = messages.Release(revoke.topic, revoke.partitions, lost=True)
            self._broker.write(message_frame(FrameKind.RELEASE, known, aux=self.key))
        for partition in revoke.partitions:
            place = TopicPartition(revoke.topic, partition)
            if place not in self._active and place not in self._revoking:
                continue
            if revoke.lost:
                self._lose(place)
            elif place not in self._revoking and not self._leaving:
                self._revoking[place] = False
                self._retire(place)
        self._attend_soon()

    def _lose(self, place: TopicPartition) -> None:
        if not self._revoking.pop(place, False):
            self._gone.append(place)
        self._retire(place)
        self._forget(place)

    def _retire(self, place: TopicPartition) -> None:
        """Gives nothing more of a partition; what is in hand of it still counts."""
        self._active.discard(place)
        self._muted.add(place)
        self._continuing.discard(place)
        self._drop_queued(place)
        self._progress.cut(place)

    def _forget(self, place: TopicPartition) -> None:
        self._next.pop(place, None)
        self._epochs.pop(place, None)
        self._progress.forget(place)
        self._commits.forget(place)

    def _drop_queued(self, place: TopicPartition) -> None:
        waiting = self._opening.get(place)
        if waiting is not None:
            self._items.extend(waiting)
            self._opening[place] = []
        super()._drop_queued(place)

    # What the application is told

    def _attend_soon(self) -> None:
        if not self._leaving and (self._attendant is None or self._attendant.done()):
            self._attendant = asyncio.get_running_loop().create_task(self._attend())

    async def _attend(self) -> None:
        """Tells of partitions that came and went, one after the other, and lets those go that
        the application has nothing of in hand."""
        while True:
            assigned, self._assigned = self._assigned, []
            if assigned:
                await self._tell(self._options.on_assign, assigned)
                self._release_held_back(assigned)
            ready = [
                place
                for place, told in self._revoking.items()
                if not told and not self._progress.holds(place)
            ]
            gone, self._gone = self._gone, []
            if not ready and not gone and not self._assigned:
                return
            for place in ready:
                self._revoking[place] = True
            await self._tell(self._options.on_revoke, sorted({*ready, *gone}))
            if ready:
                await self._let_go(ready)

    async def _tell(self, callback: OnPartitions | None, places: list[TopicPartition]) -> None:
        if callback is None or not places:
            return
        before = _called_back.set(True)
        try:
            told = callback(tuple(places))
            if inspect.isawaitable(told):
                await told
        except Exception:
            logger.exception("a callback of group %s failed", self.group)
        finally:
            _called_back.reset(before)

    def _release_held_back(self, places: list[TopicPartition]) -> None:
        for place in places:
            for batch in self._opening.pop(place, ()):
                self._put(batch)

    async def _let_go(self, places: list[TopicPartition]) -> None:
        await self._commits.flush(done=self._options.commit != "manual")
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        releases = [messages.Release(topic, tuple(some)) for topic, some in by_topic.items()]
        # Many at once: a group may follow thousands of topics.
        for at in range(0, len(releases), _RELEASES_AT_ONCE):
            await asyncio.gather(*map(self._release, releases[at : at + _RELEASES_AT_ONCE]))

    async def _release(self, wanted: messages.Release) -> None:
        def released(_: bytes) -> None:
            for partition in wanted.partitions:
                if self._revoking.pop(TopicPartition(wanted.topic, partition), False):
                    self._forget(TopicPartition(wanted.topic, partition))

        try:
            await self._broker.ask(FrameKind.RELEASE, wanted, aux=self.key, on_answer=released)
        except FanlogError as fault:
            logger.warning("releasing partitions of %s: %s", wanted.topic, fault)
