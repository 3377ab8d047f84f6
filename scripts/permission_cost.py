"""What a permission costs: python scripts/permission_cost.py

Three cases: an answer that the connection has kept, as for every batch of a publisher; one that the
account has cached, as for the first batch of a connection; and one that has to be decided.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from fanlog.broker.authority import Permit
from fanlog.broker.ports import Authority
from fanlog.broker.state.audit import NO_AUDIT
from fanlog.identity import Account, Identity, Role, Rules, Verb
from fanlog.security.directory import Directory
from fanlog.security.gate import SecurityGate
from fanlog.security.rules import Decisions

RULES = Rules(role=Role.PRODUCER, publish=("orders.>", "audit.*", "!orders.secret.>"))
NAMES = [f"orders.n{number}" for number in range(500)]


class Broker:
    """As much of one as a permit asks."""

    permissions_epoch = 0
    audit = NO_AUDIT

    def __init__(self) -> None:
        self.gate = SecurityGate(Directory(), lambda: 0)
        self.authority: Authority = self.gate
        self.denied: dict[str, int] = {}


def nanoseconds(work: Callable[[], object], number: int, each: int = 1) -> int:
    """Of the best of many short runs: what disturbs the others is not ours."""
    return round(min(timeit.repeat(work, number=number, repeat=300)) / number / each * 1e9)


def main() -> None:
    broker = Broker()
    account = Account(name="shop", kind="key", rules=RULES)
    permit = Permit(broker, Identity(user="shop", account=account))
    decisions = broker.gate.decisions

    def decide_all() -> None:
        fresh = Decisions()
        for name in NAMES:
            fresh.decide(account, Verb.PUBLISH, name)

    kept = nanoseconds(lambda: permit.may_publish("orders.eu"), 1000)
    cached = nanoseconds(lambda: decisions.decide(account, Verb.PUBLISH, "orders.eu"), 1000)
    first = nanoseconds(decide_all, 1, len(NAMES))
    print(f"kept by the connection: {kept} ns; cached by the account: {cached} ns; new: {first} ns")


if __name__ == "__main__":
    main()
