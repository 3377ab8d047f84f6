"""Dead letters, for operators: list, replay, delete and export them as JSON lines. A dead-letter
topic is an ordinary topic, so this module only reads and publishes. A replay publishes and deletes
in one transaction."""

from __future__ import annotations

import datetime as dt
import logging
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Protocol, TypeVar, overload

import msgspec

from fanlog.client import values
from fanlog.client.core.fetched import Fetched
from fanlog.client.documents import header_document, put_bytes
from fanlog.client.groups.operators import Groups
from fanlog.client.message import Message, MessageBatch
from fanlog.client.transactions.transaction import Transaction
from fanlog.errors import (
    DeadLetterNotFoundError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    UnreadableError,
)
from fanlog.format.batch import Batch
from fanlog.format.dead_letters import ID_PATTERN, Death, own_headers, read_death
from fanlog.model import TopicInfo

logger = logging.getLogger("fanlog.client")

# Letters that are put back or deleted in one transaction.
_TOGETHER = 500
# Ids that an error names, so that it stays one readable sentence.
_NAMED_MAX = 10

LetterFilter = Callable[["DeadLetter"], bool]
Progress = Callable[[int], None]
T = TypeVar("T")


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that failed for good. `id` names it within its dead-letter topic."""

    id: str
    death: Death
    value: bytes | None
    headers: dict[str, bytes]
    event_time: dt.datetime | None
    letter_topic: str
    letter_partition: int

    @overload
    def decode(self, type: type[T], /) -> T: ...
    @overload
    def decode(self, type: Any = Any, /) -> Any: ...
    def decode(self, type: Any = Any, /) -> Any:
        """The job's value as an object of a type; see `Message.decode`."""
        content = values.content_type(self.headers)
        try:
            return values.decode(self.value, content, type)
        except values.FAULTS as fault:
            raise values.decode_error(
                fault,
                type,
                content,
                topic=self.death.topic,
                partition=self.death.partition,
                offset=self.death.offset,
                has_value=self.value is not None,
            ) from fault

    def document(self) -> dict[str, Any]:
        """The dead letter as JSON. Bytes that are not text are base64, with an `encoding`."""
        death = self.death
        document: dict[str, Any] = {
            "id": self.id,
            "topic": death.topic,
            "partition": death.partition,
            "offset": death.offset,
            "queue": death.queue,
            "reason": death.reason,
            "deliveries": death.deliveries,
            "died": death.time,
        }
        if death.worker:
            document["worker"] = death.worker
        if death.priority:
            document["priority"] = death.priority
        if self.event_time is not None:
            document["event_time"] = self.event_time
        put_bytes(document, "key", "key_encoding", death.key)
        put_bytes(document, "value", "encoding", self.value)
        document["headers"] = header_document(self.headers)
        return document


class DeadLetterTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A dead-letter topic and what is in it."""

    name: str
    letters: int
    oldest: dt.datetime | None
    newest: dt.datetime | None
    sources: tuple[str, ...]
    bytes: int


class LetterHost(Protocol):
    """The client, as far as this needs it."""

    groups: Groups

    async def topics(self, pattern: str = ">", *, internal: bool = False) -> list[TopicInfo]: ...
    async def describe_topic(self, name: str) -> TopicInfo: ...
    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int = 1 << 20,
        wait_seconds: float = 0.0,
    ) -> Fetched: ...
    async def delete_records(self, topic: str, before: dict[int, int]) -> dict[int, int]: ...
    def transaction(self, id: str = "", *, timeout_seconds: float = 60.0) -> Transaction: ...


class DeadLetters:
    """Operations on dead letters, by topic and id. It is `client.dead_letters`.

    >>> for letter in await client.dead_letters.list("dead.emails"):  # doctest: +SKIP
    ...     print(letter.id, letter.death.reason, letter.value)
    >>> await client.dead_letters.replay("dead.emails", ["0:12"])  # doctest: +SKIP
    1
    """

    def __init__(self, host: LetterHost) -> None:
        self._host = host

    async def topics(self) -> list[DeadLetterTopic]:
        """Returns the dead-letter topics: those that the broker created, and those of your own
        that a queue uses."""
        groups = await self._host.groups.list()
        chosen = {group.queue.dead_letter for group in groups if group.queue is not None}
        return [
            await self._summary(info)
            for info in await self._host.topics()
            if info.settings.role == "dead-letter" or info.name in chosen
        ]

    async def _summary(self, info: TopicInfo) -> DeadLetterTopic:
        letters = [letter async for letter in self.scan(info.name)]
        times = [letter.death.time for letter in letters]
        return DeadLetterTopic(
            name=info.name,
            letters=len(letters),
            oldest=min(times, default=None),
            newest=max(times, default=None),
            sources=tuple(sorted({letter.death.topic for letter in letters})),
            bytes=info.bytes,
        )

    async def scan(
        self, topic: str, where: LetterFilter | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Yields all dead letters of a topic, the oldest first."""
        info = await self._host.describe_topic(topic)
        # Twice over the topic, so that of all letters only the keys are held in memory.
        last: dict[bytes | None, str] = {}
        async for message in self._records(info):
            last[message.key] = "" if message.is_tombstone else _id(message)
        async for message in self._records(info):
            if last.get(message.key) != _id(message):
                continue
            letter = letter_of(message)
            if letter is not None and (where is None or where(letter)):
                yield letter

    async def _records(self, info: TopicInfo) -> AsyncIterator[Message]:
        """The records of all partitions up to the end that they had."""
        for partition in info.partitions:
            offset = partition.start_offset
            while offset < partition.visible_end:
                try:
                    got = await self._host.fetch(info.name, partition.partition, offset)
                except OffsetOutOfRangeError:
                    # Deleted since: what is left begins further on.
                    now = await self._host.describe_topic(info.name)
                    offset = now.partitions[partition.partition].start_offset
                    continue
                if not got.batches:
                    break
                for batch in got.batches:
                    for message in _messages(batch):
                        if offset <= message.offset < partition.visible_end:
                            yield message
                    offset = batch.next_offset

    async def list(
        self, topic: str, *, after: str = "", limit: int = 100, where: LetterFilter | None = None
    ) -> list[DeadLetter]:
        """Returns at most `limit` dead letters after the one with the id `after`."""
        found: list[DeadLetter] = []
        behind = position_of(after) if after else (-1, -1)
        async for letter in self.scan(topic, where):
            # By position: the dead letter itself may be put back or deleted by now.
            if position_of(letter.id) <= behind:
                continue
            found.append(letter)
            if len(found) >= limit:
                break
        return found

    async def show(self, topic: str, id: str) -> DeadLetter:
        """Returns one dead letter. Raises `InvalidArgumentError` if it is not there."""
        async for letter in self.scan(topic, lambda letter: letter.id == id):
            return letter
        raise DeadLetterNotFoundError(
            f"There is no dead letter {id!r} in {topic!r}. List the dead letters with: fanlog "
            f"dead list {topic}"
        )

    async def replay(
        self,
        topic: str,
        ids: Iterable[str] | None = None,
        *,
        to: str = "",
        where: LetterFilter | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Puts dead letters back into their topic, or into `to`, and removes them here, both or
        neither. Without `ids`, it takes all of them, or those that match `where`. Returns their
        number."""
        known: dict[str, TopicInfo] = {}

        async def put_back(transaction: Transaction, letter: DeadLetter) -> None:
            target = to or letter.death.topic
            if target not in known:
                known[target] = await self._host.describe_topic(target)
            # Without a key it goes to its old partition, if that still exists.
            index = None
            if letter.death.key is None and not to:
                index = letter.death.partition
                if index >= len(known[target].partitions):
                    index = None
            await transaction.send(
                target,
                letter.value,
                key=letter.death.key,
                headers=letter.headers,
                event_time=letter.event_time,
                partition=index,
                priority=letter.death.priority,
            )

        return await self._settle(topic, ids, where, put_back, progress)

    async def delete(
        self,
        topic: str,
        ids: Iterable[str] | None = None,
        *,
        where: LetterFilter | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Deletes dead letters by id, or all that match `where`. Returns their number."""
        if ids is None and where is None:
            raise InvalidArgumentError(
                "Choose the dead letters to delete: give their ids or a condition. To delete "
                "all of them, use purge."
            )

        async def nothing_else(transaction: Transaction, letter: DeadLetter) -> None:
            del transaction, letter

        return await self._settle(topic, ids, where, nothing_else, progress)

    async def _settle(
        self,
        topic: str,
        ids: Iterable[str] | None,
        where: LetterFilter | None,
        first: Callable[[Transaction, DeadLetter], Any],
        progress: Progress | None,
    ) -> int:
        """Handles and removes each chosen dead letter, some at a time."""
        # By position, so that an id that is none is refused before anything is done.
        missing = None if ids is None else {position_of(id): id for id in ids}
        done = 0
        some: list[DeadLetter] = []

        async def settle() -> None:
            async with self._host.transaction() as transaction:
                for letter in some:
                    await first(transaction, letter)
                    await transaction.send(
                        topic,
                        None,
                        key=letter.death.letter_key,
                        partition=letter.letter_partition,
                    )
            if progress is not None:
                progress(len(some))

        async for letter in self.scan(topic, where):
            if missing is not None and missing.pop(position_of(letter.id), None) is None:
                continue
            some.append(letter)
            done += 1
            if len(some) >= _TOGETHER:
                await settle()
                some = []
        if some:
            await settle()
        if missing:
            raise DeadLetterNotFoundError(
                _not_found(topic, [missing[at] for at in sorted(missing)], done)
            )
        return done

    async def purge(self, topic: str) -> int:
        """Deletes all dead letters of a topic. Returns how many there were."""
        info = await self._host.describe_topic(topic)
        if info.settings.role != "dead-letter":
            raise InvalidArgumentError(
                f"{topic!r} is not a dead-letter topic, so it was not purged. To delete its "
                f"messages: fanlog topic truncate {shlex.quote(topic)} --before latest"
            )
        count = 0
        async for _ in self.scan(topic):
            count += 1
        await self._host.delete_records(
            topic, {p.partition: p.visible_end for p in info.partitions}
        )
        return count

    async def export(self, topic: str, where: LetterFilter | None = None) -> AsyncIterator[bytes]:
        """Yields dead letters as lines of JSON."""
        async for letter in self.scan(topic, where):
            yield msgspec.json.encode(letter.document()) + b"\n"


def _not_found(topic: str, missing: list[str], done: int) -> str:
    ids = ", ".join(missing[:_NAMED_MAX]) + (", …" if len(missing) > _NAMED_MAX else "")
    there_is = "There is no dead letter" if len(missing) == 1 else "There are no dead letters"
    others = "" if not done else f" The other {done} {'is' if done == 1 else 'are'} done."
    return (
        f"{there_is} {ids} in {topic!r}: replayed or deleted already, or never there.{others} "
        f"List the ids with: fanlog dead list {topic}"
    )


def _messages(batch: Batch) -> list[Message]:
    """A batch's messages. A batch that does not decode is left out."""
    try:
        return MessageBatch(batch).messages
    except UnreadableError as fault:
        logger.warning("dead letters are left out: %s", fault)
        return []


def _id(message: Message) -> str:
    return f"{message.partition}:{message.offset}"


def position_of(id: str) -> tuple[int, int]:
    """The partition and offset of a dead letter by its id."""
    partition, _, offset = id.partition(":")
    if not re.fullmatch(ID_PATTERN, id):
        raise InvalidArgumentError(f"{id!r} is not the id of a dead letter. An id looks like 0:12.")
    return int(partition), int(offset)


def letter_of(message: Message) -> DeadLetter | None:
    """The dead letter in a record of a dead-letter topic; None if it is not one."""
    headers = message.headers
    death = read_death(headers)
    if death is None:
        return None
    event_time = message.event_time
    return DeadLetter(
        id=_id(message),
        death=death,
        value=None if death.null else message.value,
        headers=own_headers(headers),
        event_time=None if event_time == message.timestamp else event_time,
        letter_topic=message.topic,
        letter_partition=message.partition,
    )
