"""A conversation with the broker that outlives its connections: it connects, greets, pings, comes
back after a loss, and asks. What is said in it is the client's; see `SessionHooks`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fanlog.client import core
from fanlog.client.address import cut_off, no_greeting
from fanlog.client.core import ClientCore, Event
from fanlog.client.credentials import get_login, is_refreshable
from fanlog.client.link import Dial, Link, lost_error
from fanlog.client.tls import no_tls
from fanlog.config import ClientOptions
from fanlog.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    FanlogError,
    FormatError,
    LinkError,
    RequestTimeoutError,
    UnauthenticatedError,
)
from fanlog.format import messages
from fanlog.format.codecs import UnpackLimits
from fanlog.format.frames import FrameKind, frame, message_frame
from fanlog.format.messages import decode
from fanlog.identity import Login

logger = logging.getLogger("fanlog.client")

T = TypeVar("T")
# A login is refreshed when so much of its time is over, and if that fails, again after a moment.
_REFRESH_SHARE = 0.8
_REFRESH_AGAIN_SECONDS = 2.0
OnAnswer = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHooks:
    """What the client does at a session's turns. `resume` brings back on a new connection what
    was there before, `heard` gets all that is no answer or greeting, `lost` and `back` tell when
    the connection goes and when it is there again, and after `gave_up` there will be none any
    more."""

    resume: Callable[[messages.Welcome], Awaitable[None]]
    resumed: Callable[[], None]
    heard: Callable[[Event], None]
    tick: Callable[[], None]
    gave_up: Callable[[FanlogError], None]
    lost: Callable[[FanlogError], None]
    back: Callable[[], None]


def _not_greeted(link: Link, exc: Exception | None) -> ConnectError:
    """Why a connection ended before the broker had greeted."""
    if isinstance(exc, FanlogError):
        return ConnectError(f"There is no connection to {link.peer}: {exc}")
    if isinstance(exc, ssl.SSLError):
        # With TLS 1.3 a client hears of this only after its own part of the handshake.
        return no_tls(link.peer, exc)
    return cut_off(link.peer)


class ClientSession:
    """`ready` means that there is a connection and that everything is resumed on it."""

    def __init__(
        self, hooks: SessionHooks, dial: Dial, options: ClientOptions, *, verify: bool
    ) -> None:
        self._hooks = hooks
        self._dial = dial
        self._options = options
        self._verify = verify
        self._limits = UnpackLimits(options.batch_unpacked_bytes_max)
        self._link: Link | None = None
        self._requests: dict[int, tuple[asyncio.Future[bytes], OnAnswer | None]] = {}
        self._request_number = 0
        self._welcomed: asyncio.Future[messages.Welcome] | None = None
        self._link_up = asyncio.Event()
        self._link_lost = asyncio.Event()
        self._lost_because: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._opened = False
        self.ready = False
        self.closed: FanlogError | None = None
        self.welcome: messages.Welcome | None = None
        self.reconnects = 0
        # What was shown last, and what was refused.
        self._shown: Login | None = None
        self._refused: Login | None = None
        # When to show a fresh login; 0: never.
        self._refresh_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    # The connection

    async def open(self) -> None:
        """Connects for the first time. Within `wait_seconds` a failure is tried again, as when the
        broker is being started at the same time; then it is raised."""
        self._opened = True
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._options.wait_seconds
        backoff = self._options.backoff_first_seconds
        while True:
            try:
                await self._establish()
                break
            except (LinkError, OSError) as fault:
                if loop.time() + backoff > give_up_at:
                    raise
                logger.info("no connection yet: %s", fault)
                if self._link is not None:
                    self._link.close()
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, self._options.backoff_max_seconds)
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._ping())]

    async def shut(self) -> None:
        self._give_up(ClosedError("The client was closed: connect again."))
        for task in [*self._tasks, *([self._refreshing] if self._refreshing else [])]:
            if task is not asyncio.current_task():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self.ready = False
        link, self._link = self._link, None
        if link is not None:
            link.write(frame(FrameKind.GOODBYE))
            link.close()
            await link.wait_closed()

    def _give_up(self, error: FanlogError) -> None:
        """Ends everything that still hopes."""
        if self.closed is None:
            self.closed = error
            self.ready = False
            self._hooks.gave_up(error)
            self._fail_requests(error)
            self._link_up.set()

    async def _establish(self) -> None:
        """One new connection, up to where everything goes on as before."""
        self._link_lost.clear()
        self._lost_because = None
        link = Link(
            self._handle, self._lost_link, ClientCore(verify=self._verify, limits=self._limits)
        )
        self._welcomed = asyncio.get_running_loop().create_future()
        self._link = link
        login = await get_login(self._options)
        link.transport = await self._dial(link)
        self._shown = login
        link.write(core.hello(self._options.name, login))
        try:
            async with asyncio.timeout(self._options.connect_timeout_seconds):
                self.welcome = await self._welcomed
        except TimeoutError:
            link.close()
            raise no_greeting(link.peer, self._options.connect_timeout_seconds) from None
        except FanlogError:
            link.close()
            raise
        self._plan_refresh(self.welcome.expires_seconds)
        await self._hooks.resume(self.welcome)
        self.ready = True
        self._link_up.set()
        self._hooks.resumed()

    async def _keep(self) -> None:
        """Waits for the connection to be lost, and brings it back, as long as that is wanted."""
        # Asked each time, because a wait that ends as it is cancelled (3.11) goes on here.
        while self.closed is None:
            await self._link_lost.wait()
            if not self._options.reconnect:
                self._give_up(lost_error(self._lost_because))
                return
            lost_at = asyncio.get_running_loop().time()
            if self.closed is None:
                logger.warning(
                    "%s Trying to come back; what is published meanwhile waits.",
                    lost_error(self._lost_because),
                )
                self._tell(lambda: self._hooks.lost(lost_error(self._lost_because)))
            backoff = self._options.backoff_first_seconds
            while self.closed is None:
                try:
                    await self._establish()
                except (FanlogError, OSError) as fault:
                    logger.info("no connection yet: %s", fault)
                    if self._link is not None:
                        self._link.close()
                    if isinstance(fault, UnauthenticatedError) and self._was_refused():
                        # Nothing else would come of it, but a locked account.
                        self._give_up(fault)
                        return
                else:
                    break
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(backoff * 2, self._options.backoff_max_seconds)
            self.reconnects += 1
            if self.closed is None:
                seconds = asyncio.get_running_loop().time() - lost_at
                logger.warning("Connected to the broker again, after %.1f s.", seconds)
                self._tell(self._hooks.back)

    def _was_refused(self) -> bool:
        """Whether what was refused will be refused again: a file or a function may have something
        new the next time."""
        again = self._shown is None or self._shown == self._refused
        self._refused = self._shown
        return again or not is_refreshable(self._options)

    def _plan_refresh(self, expires_seconds: float) -> None:
        self._refused = None
        self._refresh_at = 0.0
        if expires_seconds and is_refreshable(self._options):
            now = asyncio.get_running_loop().time()
            self._refresh_at = now + _REFRESH_SHARE * expires_seconds

    async def _refresh(self) -> None:
        """Shows a fresh login on the connection that is there, before the old one expires."""
        try:
            login = await get_login(self._options)
            if login is not None and self.ready:
                answer = await self.request_now(FrameKind.LOGIN, login)
                self._plan_refresh(decode(messages.LoggedIn, answer).expires_seconds)
                return
        except (FanlogError, OSError) as fault:
            logger.warning("the login was not refreshed, and will be tried again: %s", fault)
        self._refresh_at = asyncio.get_running_loop().time() + _REFRESH_AGAIN_SECONDS

    def _tell(self, call: Callable[[], None]) -> None:
        """Calls the application's own function. Its faults must not keep the client away."""
        try:
            call()
        except Exception:
            logger.exception("on_lost or on_back failed")

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        tick = min(self._options.ping_seconds, 1.0)
        heard = last = loop.time()
        while True:
            began = loop.time()
            await asyncio.sleep(tick)
            self._hooks.tick()
            if self._refresh_at and loop.time() >= self._refresh_at and self.ready:
                self._refresh_at = 0.0
                self._refreshing = asyncio.create_task(self._refresh())
            link, now = self._link, loop.time()
            # Time in which this loop was stalled says nothing about the broker.
            late = now - began - tick
            if late > self._options.ping_seconds:
                heard += late
            if link is None or self._welcomed is None or not self._welcomed.done():
                heard = now
                continue
            heard = max(heard, link.heard_at)
            if now - last >= self._options.ping_seconds:
                last = now
                link.write(frame(FrameKind.PING))
            if now - heard > 3 * self._options.ping_seconds:
                link.close()
                link.connection_lost(RequestTimeoutError("the broker went silent"))

    def _lost_link(self, link: Link, exc: Exception | None) -> None:
        """A link is gone; if it is not the present one, nobody minds any more."""
        if link is not self._link:
            return
        self.ready = False
        self._lost_because = self._lost_because or exc
        error = lost_error(self._lost_because)
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(_not_greeted(link, self._lost_because))
        self._fail_requests(error)
        if self.closed is None:
            self._link_up.clear()
            self._link_lost.set()

    def _fail_requests(self, error: FanlogError) -> None:
        requests, self._requests = self._requests, {}
        for waiting, _ in requests.values():
            if not waiting.done():
                waiting.set_exception(error)

    # Events from the broker

    def _handle(self, event: Event) -> None:
        if self._link is not None:
            self._link.heard_at = asyncio.get_running_loop().time()
        match event:
            case core.Answered(request, payload):
                self._answered(request, payload)
            case core.RequestFailed(request, error) if request:
                waiting, _ = self._requests.pop(request, (None, None))
                if waiting is not None and not waiting.done():
                    waiting.set_exception(error)
            case core.RequestFailed(_, error):
                self._lost_because = error
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_exception(error)
                self._hooks.heard(event)
            case core.Welcomed(welcome):
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(welcome)
            case core.Draining(reason):
                logger.info("%s", reason)
                self.ready = False
                self._link_up.clear()
            case _:
                self._hooks.heard(event)

    def _answered(self, request: int, payload: bytes) -> None:
        waiting, on_answer = self._requests.pop(request, (None, None))
        if waiting is not None and not waiting.done():
            if on_answer is not None:
                on_answer(payload)
            waiting.set_result(payload)

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
        """Asks once there is a connection, and again if it is lost before the answer; `repeat`
        is off for what must not be asked twice."""
        while True:
            await self.connection()
            try:
                return await self.request_now(
                    kind, message, aux=aux, on_answer=on_answer, timeout_seconds=timeout_seconds
                )
            except ConnectionLostError as lost:
                # What the broker can't read it would not read the next time either.
                if not repeat or not self.comes_back or isinstance(lost.__cause__, FormatError):
                    raise

    @property
    def comes_back(self) -> bool:
        """Whether a lost connection is worth waiting for."""
        return self._options.reconnect and self.closed is None

    async def connection(self) -> None:
        """Waits for a connection on which everything is resumed."""
        timeout = self._options.request_timeout_seconds
        if not self._opened:
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
                    "The connection to the broker was lost, and did not come back within "
                    f"{timeout} s; nothing was sent. The client goes on trying: try again when "
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
        """Asks on the connection that is there. `on_answer` sees the answer before anything
        that comes behind it."""
        if self._link_lost.is_set():
            # Since somebody looked: on this link no answer would ever come.
            raise lost_error(self._lost_because)
        timeout = timeout_seconds or self._options.request_timeout_seconds
        self._request_number = self._request_number % 0xFFFFFFFF + 1
        number = self._request_number
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._requests[number] = (answer, on_answer)
        if isinstance(message, bytes):
            self.write(frame(kind, message, request=number, aux=aux))
        else:
            self.write(message_frame(kind, message, request=number, aux=aux))
        try:
            # Not `wait_for`: in Python 3.11 it forgets a cancellation that meets the answer.
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"The broker did not answer within {timeout} s (request_timeout_seconds). The "
                "outcome is unknown: look before you do it again."
            ) from None
        finally:
            self._requests.pop(number, None)
