"""Looks at what a primary says, at the moment when it says it: messages that it shows, their
acknowledgements, the effects of entries in ledgers, and changes of topics.

Law: it only looks. Everything that is shown, answered or acted on is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from fanlog.broker.messages.stream import TurnStream
from fanlog.broker.messages.topics import Partition
from fanlog.broker.messages.turns import Turns
from fanlog.format.frames import ACK_ENTRY, Ack
from fanlog.model import Durability


class _Appended(NamedTuple):
    """A piece, and its position in the stream."""

    position: int
    base: int
    next: int


class Answers:
    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        # What each log got in a reign and is not known to be committed.
        self._appended: dict[TurnStream, dict[Partition, deque[_Appended]]] = {}

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Within, it hears of all answers."""
        note, after_all = TurnStream.note, TurnStream.after_all
        append_entry, accept = Turns.append_entry, Turns._accept

        def on_note(stream: TurnStream, partition: Partition, piece: bytes, base: int) -> None:
            note(stream, partition, piece, base)
            logs = self._appended.setdefault(stream, {})
            appended = _Appended(stream.open_position, base, partition.next_offset)
            logs.setdefault(partition, deque()).append(appended)

        def on_entry(
            turns: Turns, partition: Partition, piece: bytes, next_offset: int, done: Any
        ) -> None:
            def audited(fault: Any) -> None:
                if fault is None:
                    said = f"an entry of {partition.name} takes effect"
                    self._check(turns.stream, partition, next_offset, said)
                done(fault)

            append_entry(turns, partition, piece, next_offset, audited)

        def on_accept(
            turns: Turns, partition: Partition, piece: bytes, next_offset: int, submissions: Any
        ) -> None:
            if piece:
                said = f"{partition.name} is shown up to {next_offset}"
                self._check(turns.stream, partition, next_offset, said)
            for submission in submissions:
                for entry in submission.acks:
                    base = Ack._make(ACK_ENTRY.unpack(entry)).base_offset
                    said = f"offset {base} of {partition.name} is acknowledged"
                    self._check(turns.stream, partition, base + 1, said)
            accept(turns, partition, piece, next_offset, submissions)

        def on_after_all(stream: TurnStream, go_on: Callable[[], None]) -> None:
            position = stream.open_position

            def audited() -> None:
                if stream.replicated and stream.synced < position:
                    self._violated(
                        f"a change is answered at {position}, and {stream.synced} is committed"
                    )
                go_on()

            after_all(stream, audited)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(TurnStream, "note", on_note))
            stack.enter_context(mock.patch.object(TurnStream, "after_all", on_after_all))
            stack.enter_context(mock.patch.object(Turns, "append_entry", on_entry))
            stack.enter_context(mock.patch.object(Turns, "_accept", on_accept))
            yield

    def _check(self, stream: TurnStream, partition: Partition, end: int, said: str) -> None:
        """Everything of a log before this end is committed."""
        appended = self._appended.get(stream, {}).get(partition)
        if not appended:
            return
        level = stream.synced if partition.durability is Durability.FSYNC else stream.written
        while appended and appended[0].position <= level:
            appended.popleft()
        if appended and appended[0].base < end:
            self._violated(
                f"{said}; that is position {appended[0].position}, and {level} is committed"
            )
