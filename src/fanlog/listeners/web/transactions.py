"""Open transactions over REST: lists what each has staged, how much, and for how long, and aborts
them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from fanlog.errors import (
    ForbiddenError,
    InvalidArgumentError,
    NotSupportedError,
    TransactionNotFoundError,
)
from fanlog.identity import Verb
from fanlog.listeners.web.routes import Call, Nothing, Route

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.transactions.listing import TransactionInfo

# Topics that are named for each transaction.
_TOPICS_MAX = 20

TransactionSort = Literal["age", "idle", "bytes", "messages"]


class TransactionsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which open transactions, in which order."""

    sort: Annotated[TransactionSort, Meta(description="`idle` is the time since the last use.")] = (
        "age"
    )
    descending: Annotated[bool, Meta(description="The oldest or largest first.")] = True
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Transactions to skip.")] = 0
    limit: Annotated[
        int, Meta(ge=1, description="The largest number of transactions in the answer.")
    ] = 50


class StagedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, and how many messages are staged for it. A topic that is gone has no name."""

    name: str
    messages: int


class OpenTransactionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is neither committed nor aborted. Nobody sees its staged messages yet."""

    number: Annotated[str, Meta(description="A number to abort it by. It is not a secret.")]
    id: Annotated[str, Meta(description="The id from its program, if you may see it.")]
    user: Annotated[str, Meta(description="The user who began it. Only admins see it.")]
    address: Annotated[str, Meta(description="The address of the client. Only admins see it.")]
    client: Annotated[str, Meta(description="What the client calls itself. Only admins see it.")]
    age_seconds: float
    idle_seconds: Annotated[
        float,
        Meta(description="Seconds since its last use. The broker aborts it after its timeout."),
    ]
    timeout_seconds: float
    topics: Annotated[list[StagedTopic], Meta(description="At most 20.")]
    topic_count: int
    messages: int
    bytes: int
    on_disk: Annotated[
        bool, Meta(description="True if it is so large that the broker stores it in a file.")
    ]
    committing: Annotated[
        bool, Meta(description="It is being committed, so that it can't be aborted.")
    ]


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of open transactions. `total` counts all that you may see."""

    transactions: list[OpenTransactionAnswer]
    total: int
    bytes: Annotated[int, Meta(description="The sum of what all of them have staged.")]
    offset: int


class TransactionAborted(msgspec.Struct, frozen=True, kw_only=True):
    aborted: bool


async def list_transactions(call: Call[TransactionsQuery, None]) -> TransactionList:
    broker, permit, query = call.broker, call.permit, call.query
    seen = [
        one
        async for one in broker.slices.each(broker.transactions.listed())
        if _may_see(permit, one)
    ]
    key = {"age": "age_seconds", "idle": "idle_seconds"}.get(query.sort, query.sort)
    # There are 10,000 at most: some ms, for a thread.
    ordered = await broker.threaded(
        lambda: sorted(seen, key=lambda one: getattr(one, key), reverse=query.descending)
    )
    limit = min(query.limit, call.listener.options.page_entries_max)
    page = ordered[query.offset : query.offset + limit]
    admin = permit.may(Verb.ADMIN, "")
    return TransactionList(
        transactions=[_answer(permit, one, admin=admin) for one in page],
        total=len(seen),
        bytes=sum(one.bytes for one in seen),
        offset=query.offset,
    )


def _may_see(permit: Permit, one: TransactionInfo) -> bool:
    """Accounts that may describe all topics of a transaction may see it."""
    if not permit.guarded:
        return True
    named = [name for name in one.topics if name]
    if not named:
        return permit.may(Verb.ADMIN, "")
    return all(permit.may(Verb.DESCRIBE, name) for name in named)


def _answer(permit: Permit, one: TransactionInfo, *, admin: bool) -> OpenTransactionAnswer:
    topics = sorted(one.topics.items(), key=lambda item: (-item[1], item[0]))
    return OpenTransactionAnswer(
        number=one.number,
        id=one.id if admin or permit.may(Verb.PRODUCER, one.id) else "",
        user=one.who.user if admin else "",
        address=one.who.address if admin else "",
        client=one.client if admin else "",
        age_seconds=round(one.age_seconds, 3),
        idle_seconds=round(one.idle_seconds, 3),
        timeout_seconds=one.timeout_seconds,
        topics=[StagedTopic(name=name, messages=n) for name, n in topics[:_TOPICS_MAX]],
        topic_count=len(topics),
        messages=one.messages,
        bytes=one.bytes,
        on_disk=one.in_file,
        committing=one.committing,
    )


async def abort(call: Call[Nothing, None]) -> TransactionAborted:
    if not call.broker.transactions.abort_listed(call.path("transaction")):
        raise TransactionNotFoundError(
            "There is no open transaction with this number: it was committed, was aborted, or "
            "timed out."
        )
    return TransactionAborted(aborted=True)


ROUTES: list[Route] = [
    Route(
        "GET",
        "/v1/transactions",
        list_transactions,
        "List open transactions",
        "transactions",
        verb=Verb.DESCRIBE,
        description="Transactions that are not committed or aborted yet, with what they have "
        "staged. The list leaves out a transaction if you may not describe all of "
        "its topics.",
        query=TransactionsQuery,
        answer=TransactionList,
        errors=(InvalidArgumentError, ForbiddenError, NotSupportedError),
    ),
    Route(
        "POST",
        "/v1/transactions/{transaction}/abort",
        abort,
        "Abort a transaction",
        "transactions",
        verb=Verb.ADMIN,
        description="Discards what it has staged. Its program gets an error with its next "
        "request, and has to begin again. A transaction that is being committed "
        "can't be aborted.",
        answer=TransactionAborted,
        errors=(
            InvalidArgumentError,
            ForbiddenError,
            TransactionNotFoundError,
            NotSupportedError,
        ),
        action="transaction.abort",
    ),
]
