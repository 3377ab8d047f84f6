"""Routes of tasks: they are listed, shown and cancelled."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.errors import TaskNotFoundError
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.tasks import Task


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first."""

    tasks: list[Task]


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    about: Annotated[str, Meta(description="Only tasks about this topic.", max_length=255)] = ""
    state: Annotated[
        Literal["", "running", "done", "failed", "cancelled"],
        Meta(description="Only tasks in this state."),
    ] = ""


async def list_tasks(call: Call[TaskQuery, None]) -> TaskList:
    query = call.query
    return TaskList(
        tasks=[
            one.task
            for one in call.listener.tasks.seen_by(call.permit)
            if query.about in ("", one.task.about) and query.state in ("", one.task.state)
        ]
    )


async def show_task(call: Call[Nothing, None]) -> Task:
    return call.listener.tasks.get(call.permit, call.path("task")).task


async def cancel_task(call: Call[Nothing, Any]) -> Task:
    one = call.listener.tasks.get(call.permit, call.path("task"))
    one.stopped = True
    return one.task


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/tasks",
        list_tasks,
        "List tasks",
        "tasks",
        query=TaskQuery,
        answer=TaskList,
        description="Long work in the background, such as the replay of many dead letters. You "
        "see your own tasks; admins see all. Ended tasks stay in the list for an "
        "hour.",
    ),
    Route(
        "GET",
        "/v1/tasks/{task}",
        show_task,
        "Read a task",
        "tasks",
        answer=Task,
        errors=(TaskNotFoundError,),
    ),
    Route(
        "DELETE",
        "/v1/tasks/{task}",
        cancel_task,
        "Cancel a task",
        "tasks",
        answer=Task,
        description="The task finishes its current step, and ends. What it has done is not undone.",
        errors=(TaskNotFoundError,),
        action="task.cancel",
    ),
]
