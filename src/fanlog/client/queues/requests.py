"""Request and reply: a question published to a topic, and its answer in this client's own inbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

from fanlog.client.core.reply_table import (
    ReplyTable,
    check_reply,
    maybe_reply_address,
    request_headers,
)
from fanlog.client.message import Message
from fanlog.client.publishing import Headers, Value
from fanlog.client.queues.jobs import Job, said_by
from fanlog.client.queues.running import call_handler, check_handler, run_jobs
from fanlog.client.queues.worker import Worker
from fanlog.client.stopping import stopped_by_sigterm
from fanlog.client.subscription import Subscription
from fanlog.client.values import Encoding, answer_encoding
from fanlog.errors import (
    ClosedError,
    FanlogError,
    LeaseLostError,
    MessagesLostError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from fanlog.format.messages import TopicOpened
from fanlog.model import INBOX_PREFIX, Receipt

logger = logging.getLogger("fanlog.client")

RequestHandler = Callable[[Job], Awaitable[Value | None]]


class RequestHost(Protocol):
    """The client, as far as requests need it."""

    def subscribe(self, topic: str, *, start: str) -> Subscription: ...
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        encoding: Encoding | None = None,
    ) -> Receipt: ...
    async def open_topic(self, name: str) -> TopicOpened: ...
    async def delete_topic(self, name: str) -> None: ...


class _AwaitedReply:
    """Waits for one answer under asyncio."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def replied(self, message: Message) -> None:
        if not self.future.done():
            self.future.set_result(message)

    def failed(self, error: FanlogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Requests:
    """One client's requests that wait for their answers. The inbox is made with the first."""

    def __init__(self, host: RequestHost) -> None:
        self._host = host
        self._replies = ReplyTable()
        self._inbox: Subscription | None = None
        self._opening: asyncio.Lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    async def request(
        self,
        topic: str,
        value: Value,
        timeout_seconds: float,
        key: bytes | str | None,
        headers: Headers | None,
    ) -> Message:
        correlation = b""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._check_responders(topic)
                inbox = await self._get_inbox()
                reply = _AwaitedReply()
                correlation = self._replies.add(reply)
                own = request_headers(inbox.target, correlation)
                await self._host.publish(topic, value, key=key, headers={**(headers or {}), **own})
                message = await reply.future
        except TimeoutError:
            raise RequestTimeoutError(
                f"The request to {topic!r} got no answer within {timeout_seconds} s. It may "
                "have been done, or may still be done. Give more time with timeout_seconds."
            ) from None
        finally:
            self._replies.forget(correlation)
        return check_reply(message)

    async def _check_responders(self, topic: str) -> None:
        now = asyncio.get_running_loop().time()
        if not self._replies.is_checked(topic, now):
            opened = await self._host.open_topic(topic)
            self._replies.check(topic, opened.followers, now)

    async def _get_inbox(self) -> Subscription:
        async with self._opening:
            if self._inbox is None or self._reading is None or self._reading.done():
                name = INBOX_PREFIX + secrets.token_hex(12)
                inbox = self._host.subscribe(name, start="earliest")
                await inbox.start()
                self._inbox = inbox
                self._reading = asyncio.ensure_future(self._read(inbox))
            return self._inbox

    async def _read(self, inbox: Subscription) -> None:
        while True:
            try:
                self._replies.received(await inbox.next_batch())
            except MessagesLostError as lost:
                logger.warning("answers were lost: %s", lost)
            except FanlogError as error:
                self._replies.fail_all(error)
                return

    async def close(self) -> None:
        """Takes the inbox away."""
        inbox, self._inbox = self._inbox, None
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        if inbox is not None:
            await inbox.close()
            with contextlib.suppress(FanlogError):
                await self._host.delete_topic(inbox.target)

    async def reply(
        self, request: Message, value: Value, headers: Headers | None, error: str
    ) -> None:
        """Answers a request. A message that is no request gets no answer, and neither does a caller
        that is gone."""
        address = maybe_reply_address(request, error)
        if address is None:
            return
        inbox = address.inbox
        if not address.is_inbox:
            logger.warning("a request names %r for its answer, which is not an inbox", inbox)
            return
        try:
            encoding = answer_encoding(value, request.headers)
            own_headers = {**(headers or {}), **address.headers}
            await self._host.publish(inbox, value, headers=own_headers, encoding=encoding)
        except TopicNotFoundError:
            logger.debug(
                "the client that asked has left: its inbox %s does not exist any more", inbox
            )


async def serve(worker: Worker, handler: RequestHandler) -> None:
    """Answers requests with the handler's results, up to the worker's prefetch at a time, until the
    worker is closed or SIGTERM comes."""
    check_handler(handler)
    with stopped_by_sigterm() as stopped:
        await run_jobs(worker, lambda job: _answer(job, handler), stopped)


async def _answer(job: Job, handler: RequestHandler) -> None:
    # The reply too belongs to the trace of the request.
    job.begin_span()
    failure: BaseException | None = None
    try:
        value = await call_handler(handler, job)
        if not job.settled:
            await job.reply(b"" if value is None else value)
    except (ClosedError, LeaseLostError) as late:
        failure = late
        logger.warning("an answer came too late: %s", late)
    except Exception as error:
        failure = error
        logger.exception("a request to %s failed", job.topic)
        with contextlib.suppress(FanlogError):
            if not job.settled:
                await job.fail(said_by(error))
    finally:
        job.end_span(failure)
