"""The asyncio shell of `ClientCore`: it connects, feeds the core, writes the core's output, waits,
and reconnects after a loss. The client handles the events; see `SessionHooks`. It is long because
dialling, waiting and coming back share the state of one connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from fanlog.client.core.client_core import ClientCore
from fanlog.client.core.events import Draining, Event, RequestFailed, Revoked, Welcomed
from fanlog.client.core.handshake import no_greeting
from fanlog.client.core.losses import PartitionLosses
from fanlog.client.core.requests import may_ask_again
from fanlog.client.core.states import CONVERSING, ConnectionState
from fanlog.client.core.timing import ConnectAttempts, HeartbeatStep, LoginPlan
from fanlog.client.credentials import get_login, is_refreshable
from fanlog.client.link import Dial, Link
from fanlog.client.tls import no_tls
from fanlog.config import ClientOptions
from fanlog.errors import (
    ClosedError,
    ConnectionLostError,
    FanlogError,
    LinkError,
    RequestTimeoutError,
    UnauthenticatedError,
    UnavailableError,
)
from fanlog.format import messages
from fanlog.format.frames import FrameKind, frame
from fanlog.format.messages import decode

logger = logging.getLogger("fanlog.client")

T = TypeVar("T")
# A member of an Enum is looked up slowly, and every batch and request asks for this one.
_READY = ConnectionState.READY
OnAnswer = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHooks:
    """The client's hooks. `resume` restores the earlier state on a new connection. `heard` gets all
    events except answers and greetings. `lost` and `back` are called when the connection is lost
    and when it is back. After `gave_up` the session does not connect again."""

    resume: Callable[[messages.Welcome], Awaitable[None]]
    resumed: Callable[[], None]
    heard: Callable[[Event], None]
    tick: Callable[[], None]
    gave_up: Callable[[FanlogError], None]
    lost: Callable[[FanlogError], None]
    back: Callable[[], None]


class _AskedRequest:
    """Waits for one answer; `on_answer` gets it before any later event."""

    __slots__ = ("future", "on_answer")

    def __init__(self, future: asyncio.Future[bytes], on_answer: OnAnswer | None) -> None:
        self.future = future
        self.on_answer = on_answer

    def answered(self, payload: bytes) -> None:
        if not self.future.done():
            if self.on_answer is not None:
                self.on_answer(payload)
            self.future.set_result(payload)

    def failed(self, error: FanlogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ClientSession:
    """`ready` means that there is a connection, and everything has resumed on it."""

    def __init__(
        self, hooks: SessionHooks, dial: Dial, options: ClientOptions, *, verify: bool
    ) -> None:
        self._hooks = hooks
        self._dial = dial
        self._options = options
        self._core = ClientCore(options, verify=verify)
        self._login = LoginPlan(refreshable=is_refreshable(options))
        self._losses = PartitionLosses()
        self._link: Link | None = None
        self._welcomed: asyncio.Future[messages.Welcome] | None = None
        self._link_up = asyncio.Event()
        self._link_lost = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._refreshing: asyncio.Task[None] | None = None
        self.reconnects = 0

    @property
    def ready(self) -> bool:
        return self._core.state is _READY

    @property
    def closed(self) -> FanlogError | None:
        """Why the session is closed; None if it is not."""
        return self._core.closed

    @property
    def welcome(self) -> messages.Welcome | None:
        """The greeting of the present connection, or of the last one."""
        return self._core.welcome

    # The connection

    async def open(self) -> None:
        """Connects for the first time. For `wait_seconds` a failure is retried, because the broker
        may be starting at the same time, or becoming its cluster's primary; then it is raised."""
        loop = asyncio.get_running_loop()
        attempts = ConnectAttempts(self._options, loop.time() + self._options.wait_seconds)
        while True:
            try:
                await self._establish()
                break
            except (LinkError, UnavailableError, OSError) as fault:
                wait_seconds = attempts.maybe_wait_seconds(loop.time())
                if wait_seconds is None:
                    raise
                logger.info("no connection yet: %s", fault)
            await asyncio.sleep(wait_seconds)
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._ping())]

    async def shut(self) -> None:
        self._give_up(ClosedError("The client was closed: connect again."))
        for task in [*self._tasks, *([self._refreshing] if self._refreshing else [])]:
            if task is not asyncio.current_task():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        link, self._link = self._link, None
        if link is not None:
            link.write(frame(FrameKind.GOODBYE))
            link.close()
            await link.wait_closed()

    def _give_up(self, error: FanlogError) -> None:
        """Fails everything that still waits."""
        if self._core.closed is None:
            self._core.close(error)
            self._hooks.gave_up(error)
            self._link_up.set()

    async def _establish(self) -> None:
        """Makes one new connection, until everything has resumed."""
        self._link_lost.clear()
        self._core.dial()
        link = self._link = Link(self._received, self._lost_link)
        try:
            welcome = await self._greet(link)
            now = asyncio.get_running_loop().time()
            self._login.accepted(now, welcome.expires_seconds)
            await self._hooks.resume(welcome)
            self._core.resumed()
        except BaseException as fault:
            link.close()
            self._core.lose(fault if isinstance(fault, Exception) else None, link.peer)
            raise
        if self.ready:
            self._link_up.set()
            self._hooks.resumed()

    async def _greet(self, link: Link) -> messages.Welcome:
        """Opens the transport, and waits for the broker's greeting."""
        loop = asyncio.get_running_loop()
        welcomed = self._welcomed = loop.create_future()
        login = await get_login(self._options)
        link.transport = await self._dial(link)
        self._login.shown(login)
        if not welcomed.done():
            link.write(self._core.greet(login, loop.time()))
        timeout_seconds = self._options.connect_timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                return await welcomed
        except TimeoutError:
            raise no_greeting(link.peer, timeout_seconds) from None

    async def _keep(self) -> None:
        """Waits for the connection to be lost, and restores it, until the client is closed."""
        loop = asyncio.get_running_loop()
        # Checked each time, because a wait that ends while it is cancelled (Python 3.11) continues
        # here.
        while self.closed is None:
            await self._link_lost.wait()
            lost = self._core.lost_error()
            if not self._options.reconnect:
                self._give_up(lost)
                return
            lost_at = loop.time()
            if self.closed is None:
                logger.warning("%s Reconnecting; messages published in the meantime wait.", lost)
                self._tell(partial(self._hooks.lost, lost))
            if not await self._come_back():
                return
            self.reconnects += 1
            if self.closed is None:
                seconds = loop.time() - lost_at
                logger.warning("Connected to the broker again, after %.1f s.", seconds)
                self._tell(self._hooks.back)

    async def _come_back(self) -> bool:
        """Tries until there is a connection; False if none will come."""
        loop = asyncio.get_running_loop()
        attempts = ConnectAttempts(self._options)
        while self.closed is None:
            try:
                await self._establish()
            except (FanlogError, OSError) as fault:
                logger.info("no connection yet: %s", fault)
                if isinstance(fault, UnauthenticatedError) and self._login.is_refused_for_good():
                    self._give_up(fault)
                    return False
            else:
                return True
            wait_seconds = attempts.maybe_wait_seconds(loop.time()) or 0.0
            await asyncio.sleep(wait_seconds * random.uniform(0.5, 1.0))
        return True

    async def _refresh(self) -> None:
        """Logs in again on the open connection, before the old login expires."""
        try:
            login = await get_login(self._options)
            if login is not None and self.ready:
                answer = await self.request_now(FrameKind.LOGIN, login)
                expires_seconds = decode(messages.LoggedIn, answer).expires_seconds
                self._login.accepted(asyncio.get_running_loop().time(), expires_seconds)
                return
        except (FanlogError, OSError) as fault:
            logger.warning("the login was not refreshed, and will be tried again: %s", fault)
        self._login.refresh_failed(asyncio.get_running_loop().time())

    def _tell(self, call: Callable[[], None]) -> None:
        """Calls the application's function. Its exceptions must not stop the client from
        reconnecting."""
        try:
            call()
        except Exception:
            logger.exception("on_lost or on_back failed")

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        tick = min(self._options.ping_seconds, 1.0)
        heartbeat = self._core.heartbeat
        while True:
            await asyncio.sleep(tick)
            self._hooks.tick()
            now = loop.time()
            if self.ready and self._login.take_due(now):
                self._refreshing = asyncio.create_task(self._refresh())
            link = self._link
            if link is None or self._core.state not in CONVERSING:
                heartbeat.start(now)
                continue
            match heartbeat.check(now, tick):
                case HeartbeatStep.PING:
                    link.write(frame(FrameKind.PING))
                case HeartbeatStep.SILENT:
                    link.close()
                    link.connection_lost(RequestTimeoutError("the broker went silent"))
                case HeartbeatStep.REST:
                    pass

    def _lost_link(self, link: Link, exc: Exception | None) -> None:
        """A link is gone; an old one is ignored."""
        if link is not self._link:
            return
        if isinstance(exc, ssl.SSLError) and self._core.state not in CONVERSING:
            # With TLS 1.3 a client gets this error only after its own part of the handshake.
            exc = no_tls(link.peer, exc)
        error = self._core.lose(exc, link.peer)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(error)
        if self.closed is None:
            self._link_up.clear()
            self._link_lost.set()

    # Events from the broker

    def _received(self, link: Link, data: bytes) -> None:
        if link is self._link:
            for event in self._core.feed(data, asyncio.get_running_loop().time()):
                if type(event) in _FOR_SESSION:
                    self._handle(event)
                else:
                    self._hooks.heard(event)

    def _handle(self, event: Event) -> None:
        match event:
            case Welcomed(welcome):
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(welcome)
            case RequestFailed(_, error):
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_exception(error)
                self._hooks.heard(event)
            case Revoked(_, revoke):
                self._losses.note(revoke)
                self._hooks.heard(event)
            case Draining(reason):
                logger.info("%s", reason)
                self._link_up.clear()
            case _:
                pass

    # Requests

    def write(self, data: bytes) -> None:
        if self._link is not None:
            self._link.write(data)

    async def ask(self, kind: FrameKind, message: msgspec.Struct, answer: type[T]) -> T:
        return decode(answer, await self.request(kind, message))

    async def request(
        self,
        kind: FrameKind,
        message: msgspec.Struct,
        *,
        aux: int = 0,
        repeat: bool = True,
        on_answer: OnAnswer | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Sends a request when there is a connection, and again if it is lost before the answer;
        `repeat` is off for requests that must not be sent twice."""
        losses = self._losses.before(message)
        while True:
            if self._core.state is not _READY:
                await self.connection()
            if losses:
                self._losses.check(message, losses)
            try:
                return await self.request_now(
                    kind, message, aux=aux, on_answer=on_answer, timeout_seconds=timeout_seconds
                )
            except ConnectionLostError as lost:
                if not repeat or not self.comes_back or not may_ask_again(lost):
                    raise

    @property
    def comes_back(self) -> bool:
        """Whether a lost connection is worth waiting for."""
        return self._options.reconnect and self.closed is None

    async def connection(self) -> None:
        """Waits for a connection on which everything is resumed."""
        timeout = self._options.request_timeout_seconds
        if self._core.state is ConnectionState.NEW:
            raise ClosedError(
                "There is no connection yet: write `async with fanlog.connect(...) as client`, or "
                "`client = await fanlog.connect(...)`."
            )
        if not self.ready:
            try:
                async with asyncio.timeout(timeout):
                    await self._link_up.wait()
            except TimeoutError:
                raise ConnectionLostError(
                    "The connection to the broker was lost, and was not restored within "
                    f"{timeout} s; nothing was sent. The client keeps trying: try again when "
                    "the broker runs."
                ) from None
        if self.closed is not None:
            raise self.closed

    async def request_now(
        self,
        kind: FrameKind,
        message: msgspec.Struct | bytes,
        *,
        aux: int = 0,
        on_answer: OnAnswer | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Sends a request on the current connection. `on_answer` gets the answer before any later
        event."""
        timeout = timeout_seconds or self._options.request_timeout_seconds
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number, data = self._core.ask(kind, message, _AskedRequest(answer, on_answer), aux=aux)
        self.write(data)
        try:
            # Not `wait_for`: in Python 3.11 it forgets a cancellation that meets the answer.
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"The broker did not answer within {timeout} s (request_timeout_seconds). The "
                "outcome is unknown: check before you repeat it."
            ) from None
        finally:
            self._core.requests.forget(number)


# The events that `_handle` is for. All others are the client's alone.
_FOR_SESSION = frozenset({Welcomed, RequestFailed, Revoked, Draining})
