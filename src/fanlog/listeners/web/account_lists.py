"""Lists of keys and users: search, sort, and pages by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fanlog.errors import ForbiddenError, InvalidArgumentError, NotSupportedError
from fanlog.identity import Role, Verb
from fanlog.listeners.web.account_answers import KeyAnswer, UserAnswer, key_answer, user_answer
from fanlog.listeners.web.routes import Call, Route
from fanlog.listeners.web.shared_answers import SharedAnswers
from fanlog.listeners.web.sorted_pages import page_of
from fanlog.security.account_checks import key_info, user_info
from fanlog.security.directory import AccountEntry, KeyEntry, UserEntry

if TYPE_CHECKING:
    from fanlog.broker.slices import Slices
    from fanlog.security.accounts import BrokerAccounts

_NEVER_US = 1 << 62


class AccountsQuery(msgspec.Struct, frozen=True, kw_only=True):
    kind: Annotated[Literal["key", "user"], Meta(description="Keys, or users.")] = "key"
    search: Annotated[
        str,
        Meta(
            max_length=255,
            description="Only accounts with this text in the name, the comment, the key's id, "
            "or a rule.",
        ),
    ] = ""
    role: Annotated[
        Literal["", "admin", "producer", "consumer", "viewer", "observer", "none"],
        Meta(description="Only accounts with this role; `none`: accounts that have only rules."),
    ] = ""
    sort: Annotated[
        Literal["name", "role", "created", "expires"], Meta(description="The sort order.")
    ] = "name"
    descending: Annotated[bool, Meta(description="Reverse the order.")] = False
    offset: Annotated[int, Meta(ge=0, le=10_000_000, description="Accounts to skip.")] = 0
    limit: Annotated[
        int, Meta(ge=1, le=500, description="The largest number of accounts on the page.")
    ] = 50


class AccountsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of keys or users."""

    keys: list[KeyAnswer]
    users: list[UserAnswer]
    total: Annotated[int, Meta(description="Accounts that match.")]
    offset: int
    keys_count: Annotated[int, Meta(description="All keys.")]
    users_count: Annotated[int, Meta(description="All users.")]


def _text_of(entry: AccountEntry) -> str:
    rules = entry.rules
    lists = (rules.publish, rules.subscribe, rules.manage, rules.groups, rules.queues)
    patterns = [pattern for one in lists if one for pattern in one]
    id = entry.id if isinstance(entry, KeyEntry) else ""
    return "\n".join((entry.name, entry.comment, id, *patterns)).casefold()


def _fits(entry: AccountEntry, role: str, text: str) -> bool:
    if role and entry.rules.role != (None if role == "none" else Role(role)):
        return False
    return not text or text in _text_of(entry)


def _key(entry: AccountEntry, sort: str) -> tuple[Any, str]:
    match sort:
        case "role":
            return entry.rules.role or "", entry.name
        case "created":
            return entry.created_us, entry.name
        case "expires":
            return entry.expires_us or _NEVER_US, entry.name
        case _:
            return entry.name.casefold(), entry.name


_answers: SharedAnswers[AccountsAnswer] = SharedAnswers()


async def accounts(call: Call[AccountsQuery, None]) -> AccountsAnswer:
    broker, kept = call.broker, call.broker.accounts
    if kept is None:
        raise NotSupportedError(
            "This broker asks for no logins, so it has no keys and users. Set security.auth = true "
            "and security.admin_key_file in its config file, and start it again."
        )
    # A change shows at once: of one that is there already the epoch tells.
    key = (call.query, kept.count("key"), kept.count("user"), broker.permissions_epoch)
    return await _answers.get(broker, lambda: _find(call.query, broker.slices, kept), key)


async def _find(query: AccountsQuery, slices: Slices, kept: BrokerAccounts) -> AccountsAnswer:
    text = query.search.casefold()
    entries: list[Any] = [*kept.entries(query.kind)]
    found: list[AccountEntry] = [
        one async for one in slices.each(entries) if _fits(one, query.role, text)
    ]
    page = await page_of(
        slices,
        found,
        lambda one: _key(one, query.sort),
        offset=query.offset,
        limit=query.limit,
        descending=query.descending,
    )
    return AccountsAnswer(
        keys=[key_answer(key_info(one)) for one in page if isinstance(one, KeyEntry)],
        users=[user_answer(user_info(one)) for one in page if isinstance(one, UserEntry)],
        total=len(found),
        offset=query.offset,
        keys_count=kept.count("key"),
        users_count=kept.count("user"),
    )


ROUTES = [
    Route(
        "GET",
        "/v1/account-list",
        accounts,
        "Search and sort keys or users",
        "accounts",
        query=AccountsQuery,
        answer=AccountsAnswer,
        errors=(ForbiddenError, InvalidArgumentError, NotSupportedError),
        verb=Verb.ADMIN,
    ),
]
