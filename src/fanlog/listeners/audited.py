"""The native requests that the audit log records, in one table: a request that changes something
has a line here, and its answer has the result. The permit records refused requests and reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fanlog.errors import FanlogError, ForbiddenError, FormatError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode

if TYPE_CHECKING:
    from fanlog.listeners.request_session import RequestSession

T = TypeVar("T")
# Names of a request that has many.
_NAMES_SHOWN = 5


class AuditedRequest(NamedTuple):
    """A request whose result is not known yet."""

    action: str
    name: str
    detail: str = ""


Describe = Callable[["RequestSession", memoryview], AuditedRequest | None]


class Notes:
    """Audited requests of one connection, by their numbers. The connection is an argument: a
    reference to it would keep it alive."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        # A peer may give several requests one number.
        self._begun: dict[int, list[AuditedRequest]] = {}

    def __bool__(self) -> bool:
        return bool(self._begun)

    def begin(
        self, session: RequestSession, request: int, describe: Describe, payload: memoryview
    ) -> None:
        try:
            noted = describe(session, payload)
        except FormatError:
            return  # The handler says so.
        if noted is not None:
            self._begun.setdefault(request, []).append(noted)

    def end(self, session: RequestSession, request: int, fault: FanlogError | None = None) -> None:
        """The request is answered."""
        noted = self._begun.get(request)
        if noted is None:
            return
        action, name, detail = noted.pop(0)
        if not noted:
            del self._begun[request]
        # A forbidden request was recorded when it was checked.
        if isinstance(fault, ForbiddenError):
            return
        audit, who = session.broker.audit, session.permit.who
        if fault is None:
            audit.note(who, action, name, "ok", detail)
        else:
            audit.note(who, action, name, "failed", fault.code)


def _of(kind: type[T], describe: Callable[[T], AuditedRequest]) -> Describe:
    return lambda session, payload: describe(decode(kind, payload))


def _settings(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _opened(session: RequestSession, payload: memoryview) -> AuditedRequest | None:
    wanted = decode(messages.OpenTopic, payload)
    if not wanted.create or session.broker.catalog.find(wanted.name) is not None:
        return None
    return AuditedRequest("topic.create", wanted.name, "by publishing")


def _created(session: RequestSession, payload: memoryview) -> AuditedRequest | None:
    wanted = decode(messages.CreateTopic, payload)
    if wanted.exist_ok and session.broker.catalog.find(wanted.name) is not None:
        return None
    return AuditedRequest("topic.create", wanted.name, _settings(wanted.settings))


def _state(session: RequestSession, name: str) -> str:
    return "group" if session.broker.queues.find(name) is None else "queue"


def _reset(session: RequestSession, payload: memoryview) -> AuditedRequest | None:
    wanted = decode(messages.ResetGroup, payload)
    if wanted.dry_run:
        return None
    return AuditedRequest(f"{_state(session, wanted.group)}.reset", wanted.group, wanted.topic)


def _group_deleted(session: RequestSession, payload: memoryview) -> AuditedRequest | None:
    name = decode(messages.NamedGroup, payload).name
    return AuditedRequest(f"{_state(session, name)}.delete", name)


def _committed(session: RequestSession, payload: memoryview) -> AuditedRequest | None:
    """A transaction puts dead letters back or deletes them. One with positions is a group member's,
    whose message has just become a dead letter."""
    wanted = decode(messages.CommitTransaction, payload)
    topics = session.broker.transactions.staged_topics(wanted)
    dead = [topic.name for topic in topics if topic.settings.role == "dead-letter"]
    if not dead or wanted.offsets:
        return None
    back = [topic.name for topic in topics if topic.name not in dead]
    if not back:
        return AuditedRequest("dead.delete", _names(dead))
    return AuditedRequest("dead.replay", _names(dead), f"to {_names(back)}")


def _backed_up(session: RequestSession, payload: memoryview) -> AuditedRequest | None:
    wanted = decode(messages.BackupRequest, payload)
    return AuditedRequest("backup", "") if wanted.action == "begin" else None


def _names(names: list[str]) -> str:
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


AUDITED: dict[FrameKind, Describe] = {
    FrameKind.OPEN_TOPIC: _opened,
    FrameKind.CREATE_TOPIC: _created,
    FrameKind.GROW_TOPIC: _of(
        messages.GrowTopic,
        lambda m: AuditedRequest("topic.grow", m.name, f"partitions={m.partitions}"),
    ),
    FrameKind.ALTER_TOPIC: _of(
        messages.AlterTopic, lambda m: AuditedRequest("topic.alter", m.name, _settings(m.settings))
    ),
    FrameKind.DELETE_TOPIC: _of(
        messages.NamedTopic, lambda m: AuditedRequest("topic.delete", m.name)
    ),
    FrameKind.DELETE_RECORDS: _of(
        messages.DeleteRecords,
        lambda m: AuditedRequest(
            "topic.truncate", m.topic, _names([f"{o.partition}:{o.offset}" for o in m.offsets])
        ),
    ),
    FrameKind.COMPACT_TOPIC: _of(
        messages.NamedTopic, lambda m: AuditedRequest("topic.compact", m.name)
    ),
    FrameKind.RESET_GROUP: _reset,
    FrameKind.DELETE_GROUP: _group_deleted,
    FrameKind.CANCEL_SCHEDULED: _of(
        messages.CancelScheduled, lambda m: AuditedRequest("schedule.cancel", _names(list(m.ids)))
    ),
    FrameKind.ADD_SCHEDULE: _of(
        messages.AddSchedule, lambda m: AuditedRequest("schedule.add", m.name, f"topic {m.topic}")
    ),
    FrameKind.REMOVE_SCHEDULE: _of(
        messages.RemoveSchedule, lambda m: AuditedRequest("schedule.remove", m.name)
    ),
    FrameKind.COMMIT_TRANSACTION: _committed,
    FrameKind.BACKUP: _backed_up,
}
