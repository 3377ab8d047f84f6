"""Open transactions over REST: who stages what, how much and for how long; and to abort one."""

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

    sort: Annotated[TransactionSort, Meta(description="`idle` is the time since it was used.")] = (
        "age"
    )
    descending: Annotated[bool, Meta(description="The oldest, or the largest, first.")] = True
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Transactions to leave out.")] = 0
    limit: Annotated[int, Meta(ge=1, description="Most transactions in the answer.")] = 50


class StagedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, and how many messages are staged for it. A topic that is gone has no name."""

    name: str
    messages: int


class OpenTransactionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is neither committed nor aborted. What it has staged is seen by nobody
    yet."""

    number: Annotated[str, Meta(description="A number to abort it by. It is no secret.")]
    id: Annotated[str, Meta(description="The id that its program has given it, if you may see it.")]
    user: Annotated[str, Meta(description="Who began it: for admins only.")]
    address: Annotated[str, Meta(description="From where: for admins only.")]
    client: Annotated[str, Meta(description="What the client calls itself: for admins only.")]
    age_seconds: float
    idle_seconds: Annotated[
        float, Meta(description="Since it was last used; past its timeout it is aborted.")
    ]
    timeout_seconds: float
    topics: Annotated[list[StagedTopic], Meta(description="At most 20.")]
    topic_count: int
    messages: int
    bytes: int
    on_disk: Annotated[bool, Meta(description="Whether it is so large that it is in a file.")]
    committing: Annotated[bool, Meta(description="It is being committed: too late to abort it.")]


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of open transactions. `total` counts all that you may see."""

    transactions: list[OpenTransactionAnswer]
    total: int
    bytes: Annotated[int, Meta(description="What all of them have staged together.")]
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
    """Whoever may describe all topics of a transaction may see it."""
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
            "There is no open transaction with this number: it was committed or aborted, or its "
            "time ran out."
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
        description="Those that are neither committed nor aborted, with what they have staged. "
        "A transaction is left out if you may not describe all of its topics.",
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
        description="Forgets what it has staged. Its program gets an error when it goes on, and "
        "has to begin again. One that is being committed can't be aborted.",
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
