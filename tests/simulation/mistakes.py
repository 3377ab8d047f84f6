"""Mistakes to plant in Fanlog, each for the time of a run: the simulation has to find them.

A simulation that finds nothing proves nothing by itself. Each of these breaks one promise in a
way that a programmer could, and `test_mistakes.py` shows that some seed notices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from fanlog.broker.queues.queues import Queues
from fanlog.client.core import transaction_core
from fanlog.format.messages import CommitTransaction
from fanlog.log import files, posix, recovery
from fanlog.log.group_commit import GroupCommit
from fanlog.log.producers import ProducerRuns

Mistake = Callable[[], AbstractContextManager[object]]


@contextmanager
def _everywhere(function: Callable[..., Any], new: Callable[..., Any]) -> Iterator[None]:
    """Replaces a function in its own module, and in all that have imported its name."""
    name = function.__name__
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            if module.__name__.startswith("fanlog") and vars(module).get(name) is function:
                stack.enter_context(mock.patch.object(module, name, new))
        yield


def acknowledge_before_the_sync() -> AbstractContextManager[object]:
    """Publishers hear of a piece as soon as it is handed to group commit."""
    add = GroupCommit.add

    def early(self: GroupCommit, log: Any, piece: Any, done: Callable[[Any], None]) -> None:
        add(self, log, piece, lambda _: None)
        self._post(lambda: done(None))

    return mock.patch.object(GroupCommit, "add", early)


def forget_to_sync_the_journal() -> AbstractContextManager[object]:
    return _everywhere(posix.sync_data, lambda fd: None)


def forget_to_sync_folders() -> AbstractContextManager[object]:
    """Files are durable, and their names are not."""
    return _everywhere(files.sync_folder, lambda path: None)


def forget_sequences_at_a_start() -> AbstractContextManager[object]:
    """A start does not learn from the log what producers have stored."""
    bring_back = recovery.bring_back

    def without(*given: Any, **named: Any) -> Any:
        return bring_back(*given, **named)._replace(producers=ProducerRuns())

    return _everywhere(recovery.bring_back, without)


def forget_acks_at_a_restart() -> AbstractContextManager[object]:
    """The ledger of queues gets failures, and not what is done."""
    change_entry = Queues.change_entry

    def without_done(self: Queues, queue: Any, part: Any, done: Any, failures: Any) -> Any:
        return change_entry(self, queue, part, [], failures)

    return mock.patch.object(Queues, "change_entry", without_done)


def drop_positions_of_transactions() -> AbstractContextManager[object]:
    """A transaction stores its messages, and commits no positions."""

    def without_offsets(ticket: str, id: str, offsets: Any, tickets: Any) -> CommitTransaction:
        return CommitTransaction(ticket, id, (), tickets)

    return mock.patch.object(transaction_core, "CommitTransaction", without_offsets)


def take_no_id_for_transactions() -> AbstractContextManager[object]:
    """A transaction that is tried again is another one."""

    def without_id(ticket: str, id: str, offsets: Any, tickets: Any) -> CommitTransaction:
        return CommitTransaction(ticket, ticket, offsets, tickets)

    return mock.patch.object(transaction_core, "CommitTransaction", without_id)
