"""All of a broker at once: what one part does must not harm what another has promised."""

from __future__ import annotations

from tests.broker.model.log_machine import LogRules
from tests.broker.model.queue_machine import QueueRules
from tests.broker.model.transaction_machine import GroupTransactionRules


class WholeRules(LogRules, QueueRules, GroupTransactionRules):
    """A log that shrinks under a group and a queue, and grows by transactions."""
