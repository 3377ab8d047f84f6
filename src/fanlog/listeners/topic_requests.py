"""Requests about topics, their offsets, and the broker as a whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fanlog.broker.messages.catalog import PreparedTopic
from fanlog.broker.messages.topics import BrokerTopic
from fanlog.broker.names import check_public_name, missing_topic
from fanlog.broker.threads import begun
from fanlog.errors import FanlogError, TopicDeletedError
from fanlog.format import messages
from fanlog.format.frames import FrameKind
from fanlog.format.long_messages import encode_around, encode_items
from fanlog.format.messages import decode
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.format.signals import SIGNALS_TOPIC
from fanlog.identity import Verb
from fanlog.listeners.request_session import RequestAnswer

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


logger = logging.getLogger("fanlog.listeners")

# Partitions that are made, or that an answer lists, in one step.
_PARTITIONS_AT_ONCE = 256


def open_topic(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.OpenTopic, payload)
    if wanted.create and wanted.name not in (SCHEDULED_TOPIC, SIGNALS_TOPIC):
        check_public_name(wanted.name)
    _ask_to_open(session, wanted)
    broker = session.broker
    was_there = broker.catalog.find(wanted.name) is not None
    topic = broker.open_topic(wanted.name, create=wanted.create, owner=session.permit.owner)
    session.hear_of_growth()
    logger.debug("%s: topic %s opened, number %d", session.who, topic.name, topic.number)
    if was_there:
        session.answer(request, _opened(session, topic))
    else:
        session.answer_committed(request, _opened(session, topic))


def _ask_to_open(session: RequestSession, wanted: messages.OpenTopic) -> None:
    """Publishers are refused here, and not with each batch. A peer that does not create the topic
    may be a reader as well."""
    if wanted.name == SCHEDULED_TOPIC:
        return  # The permissions for the topics of the messages are checked when the messages come.
    if wanted.create:
        session.permit.ask(Verb.PUBLISH, wanted.name)
    else:
        session.permit.ask_any((Verb.PUBLISH, Verb.SUBSCRIBE, Verb.DESCRIBE), wanted.name)


def _opened(session: RequestSession, topic: BrokerTopic) -> messages.TopicOpened:
    return messages.TopicOpened(
        topic.name,
        topic.number,
        session.broker.epoch,
        topic.settings,
        followers=session.broker.followers_of(topic),
    )


def create_topic(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.CreateTopic, payload)
    session.permit.ask(Verb.MANAGE, wanted.name)
    broker = session.broker
    session.permit.check_owner(wanted.settings)
    is_there = broker.catalog.find(wanted.name) is not None
    # As for a message of a Redis client: the topic is created only if somebody would read it.
    if wanted.awaited and not is_there and not broker.is_awaited(wanted.name):
        raise missing_topic(wanted.name)
    partitions = wanted.settings.get("partitions", broker.topic_defaults.partitions)
    large = isinstance(partitions, int) and partitions > _PARTITIONS_AT_ONCE
    if is_there or not large:
        _create(session, request, wanted)
        return
    owner = session.permit.owner
    steps = broker.prepare_topic(wanted.name, wanted.settings, owner)
    # The next frame may be about the topic.
    session.hold_up()

    async def creating() -> None:
        try:
            prepared = await broker.slices.result(steps)
            # Again: permissions may have changed meanwhile.
            session.permit.ask(Verb.MANAGE, wanted.name)
            _create(session, request, wanted, prepared)
        finally:
            session.go_on()

    session.later(request, creating())


def _create(
    session: RequestSession,
    request: int,
    wanted: messages.CreateTopic,
    prepared: PreparedTopic | None = None,
) -> None:
    topic = session.broker.create_topic(
        wanted.name,
        wanted.settings,
        exist_ok=wanted.exist_ok,
        compare=wanted.compare,
        owner=session.permit.owner,
        prepared=prepared,
    )
    _answer_with(session, request, topic, session.answer_committed)


def _answer_with(
    session: RequestSession,
    request: int,
    topic: BrokerTopic,
    answer: Callable[[int, RequestAnswer], None],
) -> None:
    """Answers with a topic's state. Of very many partitions it is collected in slices."""
    if len(topic.partitions) <= _PARTITIONS_AT_ONCE:
        answer(request, topic.info())
        return

    async def answering() -> None:
        infos = (partition.info() for partition in topic.partitions)
        partitions = await session.broker.slices.result(encode_items(infos))
        if topic.deleted:
            raise TopicDeletedError(f"Topic {topic.name!r} was deleted meanwhile.")
        answer(request, encode_around(topic.info_without_partitions(), "partitions", partitions))

    session.later(request, answering())


def grow_topic(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.GrowTopic, payload)
    session.permit.ask(Verb.MANAGE, wanted.name)
    changed = _changed(session, request)
    session.broker.grow_topic(wanted.name, wanted.partitions, changed)


def alter_topic(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.AlterTopic, payload)
    session.permit.ask(Verb.MANAGE, wanted.name)
    session.permit.check_owner(wanted.settings)
    changed = _changed(session, request)
    session.broker.alter_topic(wanted.name, wanted.settings, changed)


def _changed(session: RequestSession, request: int) -> Callable[[BrokerTopic | FanlogError], None]:
    """Answers with the topic's new state, or with the error."""

    def answer(got: BrokerTopic | FanlogError) -> None:
        if isinstance(got, FanlogError):
            session.fail(request, got)
        else:
            _answer_with(session, request, got, session.answer_committed)

    return answer


def list_topics(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    page = session.broker.list_topics(decode(messages.ListTopics, payload))
    permit = session.permit
    if permit.guarded:
        seen = tuple(topic for topic in page.topics if permit.may(Verb.DESCRIBE, topic.name))
        page = messages.TopicPage(seen, page.next)
    session.answer(request, page)


def describe_topic(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.NamedTopic, payload).name
    session.permit.ask(Verb.DESCRIBE, name)
    _answer_with(session, request, session.broker.catalog.get(name), session.answer)


def delete_topic(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    name = decode(messages.NamedTopic, payload).name
    session.permit.ask(Verb.MANAGE, name)

    # At once, because the next frame may create a topic of that name.
    durable = begun(lambda done: session.broker.delete_topic(name, done))

    async def deleting() -> None:
        await durable
        session.answer_durably(request)

    session.later(request, deleting())


def committed(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.FindCommitted, payload)
    session.permit.ask(Verb.GROUP, wanted.durable)
    positions = session.broker.durable.positions(wanted.durable)
    session.answer(request, messages.Positions(positions))


def find_offsets(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(messages.FindOffsets, payload)
    session.permit.ask(Verb.DESCRIBE, wanted.topic)
    session.later(request, _finding(session, request, wanted))


async def _finding(session: RequestSession, request: int, wanted: messages.FindOffsets) -> None:
    found = await session.broker.reading.find_offsets(
        session.broker.catalog.get(wanted.topic), wanted.start
    )
    epoch = session.broker.epoch
    session.answer(
        request,
        messages.Positions(
            tuple(messages.Position(wanted.topic, f.partition, f.offset, epoch) for f in found)
        ),
    )


def status(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    session.permit.ask(Verb.DESCRIBE, "")
    session.answer(request, session.broker.status())


HANDLERS: dict[FrameKind, NativeHandler] = {
    FrameKind.OPEN_TOPIC: open_topic,
    FrameKind.CREATE_TOPIC: create_topic,
    FrameKind.GROW_TOPIC: grow_topic,
    FrameKind.ALTER_TOPIC: alter_topic,
    FrameKind.LIST_TOPICS: list_topics,
    FrameKind.DESCRIBE_TOPIC: describe_topic,
    FrameKind.DELETE_TOPIC: delete_topic,
    FrameKind.COMMITTED: committed,
    FrameKind.FIND_OFFSETS: find_offsets,
    FrameKind.STATUS: status,
}
