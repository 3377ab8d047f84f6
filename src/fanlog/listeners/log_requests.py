"""Requests about a topic's log: delete records from its start, and compact it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.broker.lifecycle.truncation import delete_in_slices
from fanlog.broker.messages.topics import Partition
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def delete_records(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.DeleteRecords, payload)
    session.permit.ask(Verb.MANAGE, wanted.topic)
    offsets = {position.partition: position.offset for position in wanted.offsets}
    checked = session.broker.check_deletion(wanted.topic, offsets)
    session.later(request, _deleting(session, request, wanted.topic, checked))


async def _deleting(
    session: RequestSession, request: int, name: str, checked: list[tuple[Partition, int]]
) -> None:
    broker = session.broker
    starts = await delete_in_slices(broker, checked)
    positions = (messages.Position(name, at.partition, at.offset, broker.epoch) for at in starts)
    session.answer_committed(request, messages.Positions(tuple(positions)))


def compact_topic(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.NamedTopic, payload).name
    session.permit.ask(Verb.MANAGE, name)
    session.later(request, _compacting(session, request, name))


async def _compacting(session: RequestSession, request: int, name: str) -> None:
    session.answer(request, await session.broker.compact(name))


HANDLERS: dict[FrameKind, NativeHandler] = {
    FrameKind.DELETE_RECORDS: delete_records,
    FrameKind.COMPACT_TOPIC: compact_topic,
}
