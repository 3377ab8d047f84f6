"""Sends the outcomes of one worker under asyncio: `core/job_outcomes.py` says what and when."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

import msgspec

from fanlog.client.core.job_outcomes import OutcomeTurn
from fanlog.client.core.leases import LeaseInHand
from fanlog.client.core.worker_core import WorkerCore
from fanlog.format.frames import FrameKind
from fanlog.format.messages import OutcomeKind, Welcome


class SettlingHost(Protocol):
    """The client, as far as outcomes need it."""

    @property
    def welcome(self) -> Welcome | None: ...
    async def ask(self, kind: FrameKind, message: msgspec.Struct, *, aux: int = 0) -> bytes: ...


class JobSettling:
    """Sends each turn of outcomes in a task of its own."""

    def __init__(self, host: SettlingHost, core: WorkerCore) -> None:
        self._host = host
        self._core = core
        self._tasks: set[asyncio.Task[None]] = set()
        core.outcomes.on_first = self._send_later

    async def settle(
        self,
        lease: LeaseInHand,
        verb: OutcomeKind,
        first: int,
        next: int,
        *,
        delay_ms: int = -1,
        reason: str = "",
    ) -> None:
        """Reports the outcome of some jobs, and waits until the broker has it."""
        core = self._core
        turn = core.report(lease, verb, first, next, delay_ms=delay_ms, reason=reason)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn.waiters.append(partial(_finish, answered))
        try:
            await answered
        except BaseException:
            core.take_back(lease, verb, first, next)
            raise
        core.check_in_time(turn, lease, verb, first, next)

    def ack_soon(self, lease: LeaseInHand, first: int, next: int) -> None:
        """Acks some jobs in the background."""
        self._core.ack_soon(lease, first, next)

    def raise_error(self) -> None:
        """Raises errors of outcomes that no caller has waited for."""
        self._core.outcomes.raise_error()

    def _send_later(self) -> None:
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Sends the outcomes of this turn of the loop."""
        turn = self._core.outcomes.take_turn()
        if turn is not None:
            task = asyncio.ensure_future(self._settle(turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _settle(self, turn: OutcomeTurn) -> None:
        host, core = self._host, self._core
        try:
            for settle in turn.settles():
                before = host.welcome
                payload = await host.ask(FrameKind.SETTLE, settle, aux=core.key)
                core.settled(turn, settle, payload, before)
        except Exception as error:  # noqa: BLE001 - whoever waits for the outcome must hear of it
            core.outcomes.finished(turn, error)
        else:
            core.outcomes.finished(turn)

    async def drain(self) -> None:
        """Waits until all outcomes are answered."""
        self._send()
        while self._tasks:
            await asyncio.wait(self._tasks)


def _finish(answered: asyncio.Future[None], error: Exception | None) -> None:
    if answered.done():
        return
    if error is None:
        answered.set_result(None)
    else:
        answered.set_exception(error)
