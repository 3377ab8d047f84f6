"""Long work that a request starts, with its progress: it continues when the browser is closed, and
the user who started it finds it again.

Law: there are few at a time, and they end before the broker does. What one has done is done; it can
be started again, and does the rest.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.errors import FanlogError, LimitError, TaskNotFoundError
from fanlog.identity import Verb
from fanlog.listeners.faults import OUR_FAULT

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore
    from fanlog.identity import Identity

logger = logging.getLogger("fanlog.listeners")

State = Literal["running", "done", "failed", "cancelled"]

# The most tasks at a time: each reads and publishes as fast as it can.
_RUNNING_MAX = 8
_RUNNING_OF_ONE_MAX = 4
# Ended tasks: how many are kept, and for how long.
_ENDED_MAX = 200
_ENDED_SECONDS = 3600.0


class Stopped(Exception):
    """The task was cancelled."""


class Task(msgspec.Struct, kw_only=True):
    """Work in the background. `done` and `failed` count its items, of `total`. `error` is the first
    error."""

    id: str
    kind: Annotated[str, Meta(description="The action, such as `dead.replay`.")]
    about: Annotated[str, Meta(description="The name that the task is about, such as a topic.")]
    who: Annotated[str, Meta(description="The user who started it.")]
    state: State = "running"
    done: int = 0
    total: Annotated[int | None, Meta(description="null until they are counted.")] = None
    failed: int = 0
    detail: Annotated[str, Meta(description="More about the task.")] = ""
    started: dt.datetime
    finished: dt.datetime | None = None
    error: str = ""


class RunningTask:
    """The work's side of a task: it reports progress, and checks whether to continue."""

    def __init__(self, task: Task, who: Identity) -> None:
        self.task = task
        self.who = who
        self.stopped = False
        self.ended_at = 0.0
        self.work: asyncio.Task[None] | None = None

    def of(self, total: int) -> None:
        self.task.total = total

    def progress(self, done: int = 0, failed: int = 0, error: str = "") -> None:
        """Adds items done or failed. Raises `Stopped` to end the work."""
        task = self.task
        task.done += done
        task.failed += failed
        task.error = task.error or error
        self.check()

    def check(self) -> None:
        if self.stopped:
            raise Stopped


TaskWork = Callable[[RunningTask], Awaitable[None]]


class Tasks:
    """The tasks of one listener."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._tasks: dict[str, RunningTask] = {}
        self._closed = False

    def start(
        self, permit: Permit, kind: str, about: str, work: TaskWork, *, detail: str = ""
    ) -> Task:
        """Begins work. The audit log gets its end; the request's entry has its begin."""
        self._forget()
        running = [one for one in self._tasks.values() if one.task.state == "running"]
        own = sum(_owner(one.who) == _owner(permit.who) for one in running)
        if self._closed or len(running) >= _RUNNING_MAX or own >= _RUNNING_OF_ONE_MAX:
            raise LimitError(
                f"{len(running)} tasks are running, {own} of them yours. Wait until one ends, "
                "or cancel one: GET /v1/tasks lists them."
            )
        now = dt.datetime.now(dt.UTC)
        who = permit.who.user
        task = Task(
            id=secrets.token_hex(8), kind=kind, about=about, who=who, started=now, detail=detail
        )
        one = self._tasks[task.id] = RunningTask(task, permit.who)
        one.work = asyncio.get_running_loop().create_task(self._run(one, work))
        return task

    async def _run(self, one: RunningTask, work: TaskWork) -> None:
        task = one.task
        try:
            await work(one)
            failed = task.failed and not task.done
            task.state = "failed" if failed else "done"
        except (Stopped, asyncio.CancelledError):
            task.state = "cancelled"
        except FanlogError as fault:
            task.state, task.error = "failed", str(fault)
        except Exception:
            logger.exception("the task %s of %s failed", task.kind, task.about)
            task.state, task.error = "failed", OUR_FAULT
        finally:
            task.finished = dt.datetime.now(dt.UTC)
            one.ended_at = asyncio.get_running_loop().time()
            counted = f"task {task.id} {task.state}: {task.done} done, {task.failed} failed"
            result = "failed" if task.state == "failed" else "ok"
            self._broker.audit.note(one.who, task.kind, task.about, result, counted)

    def _forget(self) -> None:
        now = asyncio.get_running_loop().time()
        ended = [one for one in self._tasks.values() if one.task.finished is not None]
        ended.sort(key=lambda one: one.ended_at)
        for at, one in enumerate(ended):
            if len(ended) - at > _ENDED_MAX or now - one.ended_at > _ENDED_SECONDS:
                del self._tasks[one.task.id]

    def seen_by(self, permit: Permit) -> list[RunningTask]:
        """The tasks that a user may see, the newest first: their own, and for admins all."""
        self._forget()
        everything = permit.may(Verb.ADMIN, "")
        own = _owner(permit.who)
        found = [one for one in self._tasks.values() if everything or _owner(one.who) == own]
        return found[::-1]

    def get(self, permit: Permit, id: str) -> RunningTask:
        for one in self.seen_by(permit):
            if one.task.id == id:
                return one
        raise TaskNotFoundError(
            f"There is no task {id[:32]!r}: it ended some time ago, the broker has restarted "
            "since, or it belongs to somebody else. GET /v1/tasks lists yours."
        )

    async def close(self) -> None:
        """Cancels all of them: unfinished steps are rolled back, finished steps stay."""
        self._closed = True
        working = [one.work for one in self._tasks.values() if one.work and not one.work.done()]
        for work in working:
            work.cancel()
        await asyncio.gather(*working, return_exceptions=True)


def _owner(who: Identity) -> tuple[str, str, str]:
    account = who.account
    return (who.user, "", "") if account is None else (who.user, account.kind, account.name)
