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

from fanlog.broker.queues.key_order import KeyOrder
from fanlog.broker.queues.queues import Queues
from fanlog.client.core import transaction_core
from fanlog.client.core.handling import Desk, MessageToHandle, Track
from fanlog.client.core.staging_outbox import StagingOutbox
from fanlog.client.groups.dead_letters import DeadLetterPublisher
from fanlog.client.transactions.transaction import Transaction
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


def forget_failures_at_a_restart() -> AbstractContextManager[object]:
    """The ledger of queues gets what is done, and not failures."""
    change_entry = Queues.change_entry

    def without_failures(self: Queues, queue: Any, part: Any, done: Any, failures: Any) -> Any:
        return change_entry(self, queue, part, done, [])

    return mock.patch.object(Queues, "change_entry", without_failures)


def hand_out_jobs_of_a_key_together() -> AbstractContextManager[object]:
    """An ordered queue does not wait for the job before."""
    return mock.patch.object(KeyOrder, "may_go", return_value=True)


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


def commit_what_is_aborted() -> AbstractContextManager[object]:
    return mock.patch.object(Transaction, "abort", Transaction.commit)


def stage_batches_backwards() -> AbstractContextManager[object]:
    """What is sealed last goes into the transaction first."""
    send = StagingOutbox._send

    def backwards(self: StagingOutbox, topic: Any, outbox: Any) -> None:
        outbox.seal()
        outbox.sealed.reverse()
        send(self, topic, outbox)

    return mock.patch.object(StagingOutbox, "_send", backwards)


def commit_messages_in_hand() -> AbstractContextManager[object]:
    """The offset of a message that a handler has begun is committed, whatever becomes of it."""
    return mock.patch.object(Track, "position", property(lambda track: track.end))


def go_on_behind_a_failure() -> AbstractContextManager[object]:
    """A message that failed is tried again behind the others of its key."""
    postpone = Desk.postpone

    def behind(self: Desk, entry: MessageToHandle) -> bool:
        again = postpone(self, entry)
        if again:
            self._lines[entry.line].entries.rotate(-1)
            self._lines[entry.line].waits = False
            self._rouse(entry.line, self._lines[entry.line])
        return again

    return mock.patch.object(Desk, "postpone", behind)


def store_no_dead_letters() -> AbstractContextManager[object]:
    """A group gives up on a message, and nobody hears of it."""

    async def publish(self: DeadLetterPublisher, message: Any, reason: str, attempts: int) -> str:
        return "dead"

    return mock.patch.object(DeadLetterPublisher, "publish", publish)
