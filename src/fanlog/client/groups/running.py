"""Passes the messages of a group to a function, several at a time, until it is stopped. Then it
finishes the begun messages, commits their offsets, and the partitions go to other members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from fanlog.client.core.handling import FailureStep, MessageToHandle, after_failure
from fanlog.client.groups.dead_letters import DeadLetterPublisher
from fanlog.client.groups.handled_member import HandledMember
from fanlog.client.groups.options import HandlerRules
from fanlog.client.message import Message
from fanlog.client.queues.jobs import said_by
from fanlog.client.queues.running import call_handler, check_handler
from fanlog.client.stopping import stopped_by_sigterm
from fanlog.client.tracing import maybe_tracer
from fanlog.errors import ClosedError, FanlogError
from fanlog.format.dead_letters import read_death

logger = logging.getLogger("fanlog.client")

MessageHandler = Callable[[Message], Awaitable[object] | object]


class Handled(msgspec.Struct, kw_only=True):
    """The result: how many messages were handled, how often a handler failed, and which messages it
    gave up on."""

    messages: int = 0
    failures: int = 0
    dead_letters: int = 0
    skipped: int = 0


async def run_member(
    member: HandledMember,
    handler: MessageHandler,
    rules: HandlerRules,
    dead_letters: DeadLetterPublisher,
    until: asyncio.Event | None,
) -> Handled:
    """Gives each message to `handler`, plain or async, until `until` is set, SIGTERM comes or the
    client is closed."""
    check_handler(handler, "a message")
    with stopped_by_sigterm(until) as stopped:
        return await _HandlerRun(member, handler, rules, dead_letters).until(stopped)


class _HandlerRun:
    def __init__(
        self,
        member: HandledMember,
        handler: MessageHandler,
        rules: HandlerRules,
        dead_letters: DeadLetterPublisher,
    ) -> None:
        self._member = member
        self._desk = member.desk
        self._handler = handler
        self._rules = rules
        self._dead_letters = dead_letters
        self._under_way: set[asyncio.Task[None]] = set()
        self._waits: set[asyncio.TimerHandle] = set()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._counts = Handled()

    async def until(self, stopped: asyncio.Event) -> Handled:
        async with self._member:
            stopping = asyncio.ensure_future(self._note(stopped))
            feeding = asyncio.ensure_future(self._feed())
            try:
                while not stopped.is_set() and self._error is None:
                    self._changed.clear()
                    self._begin_some()
                    await self._changed.wait()
                self._desk.cut_all()
                await _cancelled(feeding)
                if self._under_way:
                    await asyncio.wait(self._under_way)
            finally:
                for wait in self._waits:
                    wait.cancel()
                await _cancelled(feeding, stopping, *self._under_way)
            if self._error is not None and not isinstance(self._error, ClosedError):
                raise self._error
        return self._counts

    async def _note(self, stopped: asyncio.Event) -> None:
        await stopped.wait()
        self._changed.set()

    async def _feed(self) -> None:
        try:
            while True:
                await self._member.receive()
                self._changed.set()
        except FanlogError as error:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()

    def _begin_some(self) -> None:
        while len(self._under_way) < self._rules.concurrency:
            entry = self._desk.take()
            if entry is None:
                self._member.make_room()
                return
            task = asyncio.ensure_future(self._handle(entry))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    # One message

    async def _handle(self, entry: MessageToHandle) -> None:
        try:
            if entry.reason:
                await self._dead_letter(entry)
            else:
                await self._try(entry)
        except BaseException:
            self._desk.abandon(entry)
            raise
        finally:
            self._member.handled_partitions.handled(entry.tp)

    async def _call(self, message: Message) -> None:
        tracer = maybe_tracer()
        if tracer is None:
            await call_handler(self._handler, message)
        else:
            with tracer.processing(message, self._member.group):
                await call_handler(self._handler, message)

    async def _try(self, entry: MessageToHandle) -> None:
        try:
            await self._call(entry.message)
        except Exception as error:  # noqa: BLE001 - a handler may fail in any way; it is logged
            entry.failures += 1
            self._counts.failures += 1
            self._log(entry, error)
            await self._failed(entry, error)
        else:
            self._counts.messages += 1
            self._desk.finish(entry)

    def _log(self, entry: MessageToHandle, error: Exception) -> None:
        message = entry.message
        logger.error(
            "Message %s/%d@%d of group %s failed at attempt %d: %s",
            message.topic,
            message.partition,
            message.offset,
            self._member.group,
            entry.failures,
            said_by(error),
            exc_info=error,
        )

    def _postpone(self, entry: MessageToHandle) -> None:
        if not self._desk.postpone(entry):
            return
        delay_seconds = self._rules.retry.delay_seconds(entry.failures)

        def over() -> None:
            self._waits.discard(wait)
            self._desk.resume(entry)
            self._changed.set()

        wait = asyncio.get_running_loop().call_later(delay_seconds, over)
        self._waits.add(wait)

    async def _failed(self, entry: MessageToHandle, error: Exception) -> None:
        message = entry.message
        step = after_failure(
            entry.failures,
            self._rules.max_attempts,
            self._rules.on_failure,
            is_dead_letter=read_death(message.headers) is not None,
        )
        match step:
            case FailureStep.RETRY:
                self._postpone(entry)
            case FailureStep.STOP:
                error.add_note(
                    f"{message.topic}/{message.partition}@{message.offset} failed "
                    f"{entry.failures} times, and on_failure is 'stop'. Its offset was not "
                    "committed, so it will be delivered again."
                )
                raise error
            case FailureStep.SKIP:
                self._skip(entry, "is skipped")
            case FailureStep.LEAVE:
                self._skip(entry, "is a dead letter already, and is skipped")
            case FailureStep.DEAD_LETTER:
                entry.reason = said_by(error)
                await self._dead_letter(entry)

    def _skip(self, entry: MessageToHandle, what: str) -> None:
        message = entry.message
        self._counts.skipped += 1
        logger.error(
            "Message %s/%d@%d of group %s %s after %d attempts.",
            message.topic,
            message.partition,
            message.offset,
            self._member.group,
            what,
            entry.failures,
        )
        self._desk.finish(entry)

    async def _dead_letter(self, entry: MessageToHandle) -> None:
        """Its partition waits until the letter is stored."""
        message = entry.message
        where = f"{message.topic}/{message.partition}@{message.offset}"
        try:
            topic = await self._dead_letters.publish(message, entry.reason, entry.failures)
        except FanlogError as error:
            logger.error("The dead letter of %s could not be stored: %s", where, error)
            self._postpone(entry)
            return
        self._counts.dead_letters += 1
        logger.error("Message %s is now a dead letter in %s.", where, topic)
        self._desk.finish(entry)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
