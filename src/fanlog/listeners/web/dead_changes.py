"""Changes of dead letters over REST: replay, delete and purge. Many at once are a task."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from fanlog.client import dead_letters
from fanlog.errors import (
    DeadLetterNotFoundError,
    FanlogError,
    ForbiddenError,
    InvalidNameError,
    LimitError,
    MessageTooLargeError,
    TopicDiffersError,
)
from fanlog.identity import Verb
from fanlog.listeners.web.dead_answers import (
    ChosenLetters,
    DeadLetterCountAnswer,
    EditedLetter,
    ReplayedLetters,
)
from fanlog.listeners.web.dead_browse import ERRORS_OF_ONE, index_of
from fanlog.listeners.web.dead_work import DeadLetterWork, Edit, ask_to_replay
from fanlog.listeners.web.routes import Call, Nothing, Route
from fanlog.listeners.web.topics import refused_by_topic

if TYPE_CHECKING:
    from fanlog.listeners.web.dead_index import DeadLetterIndex
    from fanlog.listeners.web.dead_work import DeadLetterPosition, WorkReport
    from fanlog.listeners.web.tasks import RunningTask

# At most this many ids are named in an error.
_NAMED_MAX = 10


class _Count:
    """Counts the work done, for the caller."""

    def __init__(self) -> None:
        self.done = 0

    def of(self, total: int) -> None: ...

    def progress(self, done: int = 0, failed: int = 0, error: str = "") -> None:
        self.done += done


async def replay(call: Call[Nothing, ReplayedLetters]) -> DeadLetterCountAnswer:
    topic, wanted = call.path("topic"), call.body
    ask_to_replay(call.permit, topic, wanted.to)
    wanted.check()
    if not call.bus.is_broker:
        return await _replay_upstream(call, topic, wanted)
    index = index_of(call, topic)
    tolerant = wanted.background
    settling = DeadLetterWork(
        call.broker,
        call.client,
        index,
        call.permit,
        replay=True,
        to=wanted.to,
        tolerant=tolerant,
    )
    return await _begin(call, "dead.replay", settling, wanted)


async def delete(call: Call[Nothing, ChosenLetters]) -> DeadLetterCountAnswer:
    topic, wanted = call.path("topic"), call.body
    call.permit.ask(Verb.MANAGE, topic)
    wanted.check()
    if not call.bus.is_broker:
        return await _delete_upstream(call, topic, wanted)
    index = index_of(call, topic)
    if wanted.all:
        _check_purged(index)
        if not wanted.background:
            return DeadLetterCountAnswer(count=await _purge(call, index))

        async def purge(running: RunningTask) -> None:
            running.progress(done=await _purge(call, index, running))

        task = call.listener.tasks.start(call.permit, "dead.purge", topic, purge, detail="all")
        return DeadLetterCountAnswer(count=0, task=task.id)
    settling = DeadLetterWork(
        call.broker, call.client, index, call.permit, replay=False, tolerant=wanted.background
    )
    return await _begin(call, "dead.delete", settling, wanted)


async def _begin(
    call: Call[Any, Any], kind: str, settling: DeadLetterWork, wanted: ChosenLetters
) -> DeadLetterCountAnswer:
    """Does the work now, or starts a task for it."""
    topic, ids = call.path("topic"), wanted.chosen()
    named = None if ids is None else settling.those_named(ids)

    async def work(report: WorkReport) -> list[DeadLetterPosition]:
        positions = named
        if positions is None:
            positions = await settling.those_that_fit(wanted.wanted())
        return await settling.run(positions, report)

    if wanted.background:

        async def in_background(running: RunningTask) -> None:
            missing = await work(running)
            if missing and ids is not None:
                fault = _not_found(topic, missing, running.task.done)
                running.progress(failed=len(missing), error=str(fault))

        detail = wanted.detail()
        task = call.listener.tasks.start(call.permit, kind, topic, in_background, detail=detail)
        return DeadLetterCountAnswer(count=0, task=task.id)
    counted = _Count()
    missing = await work(counted)
    if missing and ids is not None:
        raise _not_found(topic, missing, counted.done)
    return DeadLetterCountAnswer(count=counted.done)


def _not_found(topic: str, missing: list[DeadLetterPosition], done: int) -> DeadLetterNotFoundError:
    ids = ", ".join(f"{partition}:{offset}" for partition, offset in missing[:_NAMED_MAX])
    more = ", …" if len(missing) > _NAMED_MAX else ""
    there_is = "There is no dead letter" if len(missing) == 1 else "There are no dead letters"
    others = "" if not done else f" The other {done} {'is' if done == 1 else 'are'} done."
    return DeadLetterNotFoundError(
        f"{there_is} {ids}{more} in {topic!r}: replayed or deleted already, or never there.{others}"
    )


def _check_purged(index: DeadLetterIndex) -> None:
    name = index.topic.name
    if index.topic.settings.role != "dead-letter":
        raise TopicDiffersError(
            f"{name!r} is not a dead-letter topic, so it is not purged. To delete what it holds: "
            f"fanlog topic truncate {shlex.quote(name)} --before latest"
        )


async def _purge(
    call: Call[Any, Any], index: DeadLetterIndex, report: WorkReport | None = None
) -> int:
    async with index.settling:
        await index.ready()
        count = index.table.count
        if report is not None:
            report.of(count)
        ends = {p.index: p.visible_end for p in index.topic.partitions}
        await call.client.delete_records(index.topic.name, ends)
        await index.ready()
    return count


async def replay_one(call: Call[Nothing, EditedLetter]) -> DeadLetterCountAnswer:
    topic, wanted = call.path("topic"), call.body
    ask_to_replay(call.permit, topic, wanted.to)
    edit = None
    if not isinstance(wanted.message, UnsetType):
        edit = Edit(*wanted.message.record())
    index = index_of(call, topic)
    settling = DeadLetterWork(
        call.broker, call.client, index, call.permit, replay=True, to=wanted.to, edit=edit
    )
    counted = _Count()
    missing = await settling.run(settling.those_named([_id(call)]), counted)
    if missing:
        raise _not_found(topic, missing, 0)
    return DeadLetterCountAnswer(count=counted.done)


async def delete_one(call: Call[Nothing, None]) -> None:
    topic = call.path("topic")
    call.permit.ask(Verb.MANAGE, topic)
    if not call.bus.is_broker:
        await call.client.dead_letters.delete(topic, [call.path("id")])
        return
    settling = DeadLetterWork(
        call.broker, call.client, index_of(call, topic), call.permit, replay=False
    )
    missing = await settling.run(settling.those_named([_id(call)]), _Count())
    if missing:
        raise _not_found(topic, missing, 0)


def _id(call: Call[Any, Any]) -> str:
    """The id in the path. An invalid id counts as not found."""
    id = call.path("id")
    try:
        dead_letters.position_of(id)
    except FanlogError as fault:
        raise DeadLetterNotFoundError(str(fault)) from None
    return id


# On an edge: through its client of the upstream broker.


def _ids_upstream(wanted: ChosenLetters) -> list[str] | None:
    if wanted.background or not isinstance(wanted.where, UnsetType):
        raise LimitError(
            "This is an edge: it accepts only `ids` or `all`, and has no tasks. Ask"
            " the broker behind it."
        )
    return wanted.chosen()


async def _replay_upstream(
    call: Call[Any, Any], topic: str, wanted: ReplayedLetters
) -> DeadLetterCountAnswer:
    ids = _ids_upstream(wanted)
    positions = None if ids is None else {dead_letters.position_of(id) for id in ids}

    def may_go_back(letter: dead_letters.DeadLetter) -> bool:
        """A dead letter names its own origin, and its publisher may have lied."""
        if positions is not None and dead_letters.position_of(letter.id) not in positions:
            return False
        if not wanted.to:
            call.permit.ask(Verb.PUBLISH, letter.death.topic)
        return True

    count = await call.client.dead_letters.replay(topic, ids, to=wanted.to, where=may_go_back)
    return DeadLetterCountAnswer(count=count)


async def _delete_upstream(
    call: Call[Any, Any], topic: str, wanted: ChosenLetters
) -> DeadLetterCountAnswer:
    ids = _ids_upstream(wanted)
    letters = call.client.dead_letters
    if ids is not None:
        return DeadLetterCountAnswer(count=await letters.delete(topic, ids))
    with refused_by_topic():
        return DeadLetterCountAnswer(count=await letters.purge(topic))


_CHANGES = (*ERRORS_OF_ONE, ForbiddenError, InvalidNameError, LimitError, MessageTooLargeError)

ROUTES = [
    Route(
        "POST",
        "/v1/dead-letters/{topic}/replay",
        replay,
        "Replay dead letters",
        "dead letters",
        body=ReplayedLetters,
        answer=DeadLetterCountAnswer,
        description="A replay publishes the job and deletes the dead letter: both, or neither. "
        "With `background` the answer names a task (`/v1/tasks/{task}`). The task "
        "counts the dead letters that it can't replay, and continues with the "
        "others.",
        errors=_CHANGES,
        action="dead.replay",
        detail=lambda call: call.body.detail(),
    ),
    Route(
        "POST",
        "/v1/dead-letters/{topic}/letters/{id}/replay",
        replay_one,
        "Replay a dead letter, changed or not",
        "dead letters",
        body=EditedLetter,
        answer=DeadLetterCountAnswer,
        description="With a `message`, the job goes to its original topic with that key, these "
        "headers and this value. Without one, it is replayed as it is. Storing the "
        "job and deleting the dead letter happen together: both, or neither.",
        errors=_CHANGES,
        action="dead.replay",
        detail=lambda call: "as it is" if call.body.message is UNSET else "changed",
    ),
    Route(
        "POST",
        "/v1/dead-letters/{topic}/delete",
        delete,
        "Delete dead letters",
        "dead letters",
        body=ChosenLetters,
        answer=DeadLetterCountAnswer,
        description="With `all`, every dead letter of the topic is deleted. With "
        "`background` the answer names a task.",
        errors=(*ERRORS_OF_ONE, ForbiddenError, LimitError, TopicDiffersError),
        action="dead.delete",
        detail=lambda call: call.body.detail(),
    ),
    Route(
        "DELETE",
        "/v1/dead-letters/{topic}/letters/{id}",
        delete_one,
        "Delete a dead letter",
        "dead letters",
        status=204,
        errors=(*ERRORS_OF_ONE, ForbiddenError),
        action="dead.delete",
    ),
]
