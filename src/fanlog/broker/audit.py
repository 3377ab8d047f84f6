"""The audit log: who did what to what, when, from where, and with which result."""

from __future__ import annotations

from fanlog.broker.ports import AuditResult
from fanlog.identity import Identity


class NoAudit:
    """Writes nothing down."""

    def note(
        self, who: Identity, action: str, name: str, result: AuditResult, detail: str = "", /
    ) -> None:
        return None


NO_AUDIT = NoAudit()
