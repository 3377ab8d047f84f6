"""Shared by all dashboards: the table of all groups and queues, and the views of single ones."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fanlog.broker.insight.group_scan import GroupRow, GroupScan
from fanlog.broker.insight.group_view import GroupView, view_group
from fanlog.errors import GroupNotFoundError
from fanlog.identity import Account, Verb
from fanlog.listeners.web.shared_answers import SharedAnswers

if TYPE_CHECKING:
    from fanlog.broker.authority import Permit
    from fanlog.broker.broker_core import BrokerCore

# Views that are kept, and accounts whose visible groups are kept.
_VIEWS_MAX = 64
_ACCOUNTS_MAX = 16
_ANSWERS_MAX = 50_000
# With very many groups a look at all of them takes a while. Who asks meanwhile gets the table of
# before, if it is not older than this.
_OLD_SECONDS_MAX = 30.0
_WAIT_SECONDS = 0.05
# Pages that are kept with a table: dashboards ask for the same ones.
_PAGES_MAX = 64


class GroupTable:
    """Every group and queue, as they were `taken`, by the loop's clock."""

    def __init__(self, rows: list[GroupRow]) -> None:
        self.rows = rows
        self.taken = asyncio.get_running_loop().time()
        self._pages: OrderedDict[object, tuple[Any, object]] = OrderedDict()

    @property
    def age_seconds(self) -> float:
        return asyncio.get_running_loop().time() - self.taken

    def maybe_page(self, key: object) -> Any:
        return self._pages.get(key, (None, None))[0]

    def keep_page(self, key: object, page: Any, account: Account | None) -> None:
        """The account is kept with it, so that its id stays its own."""
        self._pages[key] = (page, account)
        if len(self._pages) > _PAGES_MAX:
            self._pages.popitem(last=False)


class _Name:
    """One for each name that has a kept view."""


class _Seen:
    """What an account may see. It holds the account, so that its id stays its own."""

    def __init__(self, account: Account, epoch: int) -> None:
        self.account = account
        self.epoch = epoch
        self.answers: dict[tuple[Verb, str], bool] = {}


class GroupTables:
    """The tables of one broker."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._scan = GroupScan(broker)
        self.times = self._scan.times
        self._tables: SharedAnswers[GroupTable] = SharedAnswers()
        self._last: GroupTable | None = None
        self._changes = 0
        self._looking: set[asyncio.Task[GroupTable]] = set()
        self._views: SharedAnswers[GroupView | None] = SharedAnswers()
        self._names: OrderedDict[str, _Name] = OrderedDict()
        self._seen: OrderedDict[int, _Seen] = OrderedDict()

    async def table(self) -> GroupTable:
        """A table that is a few seconds old at most, or the one of before while it is made."""
        look = asyncio.ensure_future(self._tables.get(self, self._make_table))
        self._looking.add(look)
        look.add_done_callback(self._looking.discard)
        await asyncio.wait((look,), timeout=_WAIT_SECONDS)
        last = self._last
        if look.done() or last is None or last.age_seconds > _OLD_SECONDS_MAX:
            return await look
        return last

    async def _make_table(self) -> GroupTable:
        changes = self._changes
        table = GroupTable(await self._scan.rows())
        if changes == self._changes:
            self._last = table
        return table

    async def view(self, name: str) -> GroupView:
        """One group or queue. Raises GroupNotFoundError if there is none."""
        owner = self._names.get(name)
        if owner is None:
            owner = self._names[name] = _Name()
            if len(self._names) > _VIEWS_MAX:
                self._names.popitem(last=False)
        self._names.move_to_end(name)
        found = await self._views.get(owner, lambda: view_group(self._broker, name, self.times))
        if found is None or not self.is_there(found.row):
            # The table stays: who asks for names that are not there makes no work for others.
            self._names.pop(name, None)
            raise GroupNotFoundError(
                f"There is no group or queue {name!r}. List them with: fanlog group list"
            )
        return found

    def forget(self, name: str) -> None:
        """A group was changed: the next answer must show that."""
        self._names.pop(name, None)
        self._tables.forget(self)
        self._last = None
        self._changes += 1

    def is_there(self, row: GroupRow) -> bool:
        """Whether a row's group or queue still exists."""
        if row.kind == "queue":
            return self._broker.queues.find(row.name) is not None
        return self._broker.groups.is_known(row.name)

    def sees(self, permit: Permit) -> Callable[[GroupRow], bool]:
        """Which rows somebody may see. An account's answers are kept until rules change."""
        if not permit.guarded:
            return _everything
        account, epoch = permit.who.account, self._broker.permissions_epoch
        if account is None:
            return lambda row: permit.may_see(verb_of(row), row.name)
        kept = self._seen.get(id(account))
        if kept is None or kept.epoch != epoch:
            kept = self._seen[id(account)] = _Seen(account, epoch)
            if len(self._seen) > _ACCOUNTS_MAX:
                self._seen.popitem(last=False)
        self._seen.move_to_end(id(account))
        answers = kept.answers

        def sees(row: GroupRow) -> bool:
            key = (verb_of(row), row.name)
            answer = answers.get(key)
            if answer is None:
                if len(answers) >= _ANSWERS_MAX:
                    answers.clear()
                answer = answers[key] = permit.may_see(*key)
            return answer

        return sees


def _everything(row: GroupRow) -> bool:
    del row
    return True


def verb_of(row: GroupRow) -> Verb:
    return Verb.QUEUE if row.kind == "queue" else Verb.GROUP
