"""Queues over REST, so that curl alone can be a worker: take jobs, and report their outcomes. Law:
no state here. A receipt names the job and its worker, so that each request may go to another
process.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from fanlog.client.core.job_receipts import ReceivedJob, read_receipt
from fanlog.client.queues import taking
from fanlog.client.queues.options import WorkOptions
from fanlog.errors import (
    GroupActiveError,
    GroupNotFoundError,
    InvalidArgumentError,
    LimitError,
    TopicDiffersError,
    TopicNotFoundError,
)
from fanlog.format import messages
from fanlog.format.web import RenderedRecords, partition_json
from fanlog.identity import Verb
from fanlog.listeners.web.messages import MessageAnswer
from fanlog.listeners.web.openapi_names import (
    NAME_OR_NONE_PATTERN,
    NOT_INTERNAL,
    RECEIPT_PATTERN,
)
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.topics import refused_by_topic
from fanlog.model import TOPIC_NAME_BYTES_MAX

JobReason = Annotated[str, Meta(description="The reason, for people who look at the job later.")]


class TakeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs, how long to wait for the first, and settings of the queue that are to change;
    those that are left out stay."""

    limit: Annotated[int, Meta(ge=1, description="The largest number of jobs in the answer.")] = 1
    wait_seconds: Annotated[
        float, Meta(ge=0, description="How long to wait for a job if there is none.")
    ] = 0.0
    visibility_seconds: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=86_400,
                description="Seconds that a worker has for a job. After that another worker gets "
                "it.",
            ),
        ]
        | UnsetType
    ) = UNSET
    max_deliveries: (
        Annotated[
            int, Meta(ge=1, le=10_000, description="Deliveries before a job becomes a dead letter.")
        ]
        | UnsetType
    ) = UNSET
    retry_delay_seconds: (
        Annotated[
            float,
            Meta(ge=0, le=86_400, description="Seconds before a failed job is delivered again."),
        ]
        | UnsetType
    ) = UNSET
    dead_letter: (
        Annotated[
            str,
            Meta(
                description="The dead-letter topic.",
                max_length=TOPIC_NAME_BYTES_MAX,
                extra_json_schema={"pattern": NAME_OR_NONE_PATTERN, **NOT_INTERNAL},
            ),
        ]
        | UnsetType
    ) = UNSET
    ordered: (
        Annotated[
            bool, Meta(description="Only one job of a key at a time, in the order of the log.")
        ]
        | UnsetType
    ) = UNSET
    reset: (
        Annotated[Literal["earliest", "latest"], Meta(description="Where a new queue starts.")]
        | UnsetType
    ) = UNSET


class TakenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job. The `receipt` settles it, in any process."""

    receipt: str
    deliveries: Annotated[int, Meta(description="The number of deliveries, including this one.")]
    message: MessageAnswer


class _TakenJob(msgspec.Struct, frozen=True, kw_only=True):
    """The same, with a message that is JSON already."""

    receipt: str
    deliveries: int
    message: Raw


class TakenJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are the caller's for the queue's `visibility_seconds`."""

    jobs: list[TakenJob]


class _TakenJobs(msgspec.Struct, frozen=True):
    jobs: list[_TakenJob]


Receipts = Annotated[
    list[Annotated[str, Meta(extra_json_schema={"pattern": RECEIPT_PATTERN})]],
    Meta(min_length=1, max_length=10_000, description="The receipts from taking the jobs."),
]


class AckBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that are done."""

    receipts: Receipts


class NackBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that failed, and are to be tried again."""

    receipts: Receipts
    delay_seconds: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=86_400,
                description="Seconds until the next delivery. Default: the queue's retry delay.",
            ),
        ]
        | None
    ) = None
    reason: JobReason = ""


class RejectBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that can't be done: they become dead letters at once."""

    receipts: Receipts
    reason: JobReason = ""


class ExtendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that take longer."""

    receipts: Receipts
    seconds: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=86_400,
                description="Seconds from now. Default: the queue's visibility_seconds.",
            ),
        ]
        | None
    ) = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How many outcomes counted. `late` has the receipts of the other jobs: they are done already,
    are dead letters, or belong to another worker now."""

    settled: int
    late: list[str]


async def take(call: Call[TakeQuery, None]) -> _TakenJobs:
    query, options = call.query, call.listener.options
    topic, queue = call.path("topic"), call.path("queue")
    call.permit.ask(Verb.SUBSCRIBE, topic)
    call.permit.ask(Verb.QUEUE, queue)
    given: dict[str, Any] = {
        name: value
        for name, value in msgspec.structs.asdict(query).items()
        if name not in ("limit", "wait_seconds") and value is not UNSET
    }
    call.permit.ask_dead_letter_topic(given.get("dead_letter"))
    settings: WorkOptions = {**given, "missing": "fail"}  # type: ignore[typeddict-item]
    try:
        with refused_by_topic():
            taken = await taking.take(
                call.client,
                topic,
                queue=queue,
                limit=min(query.limit, options.page_entries_max),
                wait_seconds=min(query.wait_seconds, options.wait_seconds_max),
                options=settings,
            )
    except TopicNotFoundError:
        # The client's own words are about options that a request does not have.
        raise TopicNotFoundError(
            f"There is no topic {topic!r}. Publish its first job with: "
            f"POST /v1/topics/{quote(topic, safe='')}/messages"
        ) from None
    # It may have waited: permissions may have changed meanwhile.
    call.permit.ask(Verb.SUBSCRIBE, topic)
    call.permit.ask(Verb.QUEUE, queue)
    return _TakenJobs(_rendered(taken))


def _rendered(taken: list[ReceivedJob]) -> list[_TakenJob]:
    """The jobs as JSON, each batch rendered once."""
    rendered: dict[int, list[str]] = {}
    jobs: list[_TakenJob] = []
    for message, deliveries, receipt in taken:
        batch = message.batch
        if id(batch) not in rendered:
            rendered[id(batch)] = RenderedRecords(batch).messages
        shown = rendered[id(batch)][message.index]
        whole = partition_json(message.topic, message.partition) + shown[1:]
        message_json = Raw(whole.encode())
        jobs.append(_TakenJob(receipt=receipt, deliveries=deliveries, message=message_json))
    return jobs


async def _settle(
    call: Call[Any, Any],
    verb: messages.OutcomeKind,
    *,
    seconds: float | None = None,
    reason: str = "",
) -> Outcome:
    queue = call.path("queue")
    call.permit.ask(Verb.QUEUE, queue)
    receipts: list[str] = call.body.receipts
    for receipt in receipts:
        if read_receipt(receipt).queue != queue:
            raise InvalidArgumentError(f"A receipt belongs to another queue, not to {queue!r}.")
    delay_ms = -1 if seconds is None else round(seconds * 1000)
    late = await taking.settle(call.client, receipts, verb, delay_ms=delay_ms, reason=reason)
    return Outcome(settled=len(set(receipts)) - len(late), late=late)


async def ack(call: Call[Any, AckBody]) -> Outcome:
    return await _settle(call, messages.OutcomeKind.ACK)


async def nack(call: Call[Any, NackBody]) -> Outcome:
    body = call.body
    return await _settle(
        call, messages.OutcomeKind.NACK, seconds=body.delay_seconds, reason=body.reason
    )


async def reject(call: Call[Any, RejectBody]) -> Outcome:
    return await _settle(call, messages.OutcomeKind.REJECT, reason=call.body.reason)


async def extend(call: Call[Any, ExtendBody]) -> Outcome:
    return await _settle(call, messages.OutcomeKind.EXTEND, seconds=call.body.seconds)


def _settling(name: str, handler: Any, summary: str, body: Any) -> Route:
    return Route(
        "POST",
        f"/v1/queues/{{topic}}/{{queue}}/{name}",
        handler,
        summary,
        "queues",
        body=body,
        answer=Outcome,
        errors=(InvalidArgumentError, GroupNotFoundError),
    )


ROUTES = [
    Route(
        "POST",
        "/v1/queues/{topic}/{queue}/take",
        take,
        "Take jobs",
        "queues",
        query=TakeQuery,
        answer=TakenJobs,
        description="The topic may be a pattern. Another worker gets a job that has no outcome "
        "after the queue's visibility_seconds.",
        errors=(
            InvalidArgumentError,
            TopicNotFoundError,
            TopicDiffersError,
            GroupActiveError,
            LimitError,
        ),
    ),
    _settling("ack", ack, "Acknowledge jobs", AckBody),
    _settling("nack", nack, "Nack jobs, to try them again", NackBody),
    _settling("reject", reject, "Reject jobs, to make them dead letters", RejectBody),
    _settling("extend", extend, "Extend the leases of jobs", ExtendBody),
]
