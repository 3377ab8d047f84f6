"""Open connections are checked again when keys, users or rules have changed, and when accounts
expire. A connection whose login is no longer valid is closed."""

from __future__ import annotations

from fanlog.broker.authority import Permit
from fanlog.broker.ports import Gate
from fanlog.errors import UnauthenticatedError
from fanlog.security.gate import REVOKED


def recheck_permit(gate: Gate, permit: Permit) -> UnauthenticatedError | None:
    """Renews the identity of a connection; the error if its login is no longer valid. A connection
    that has not logged in yet stays as it is."""
    who = permit.who
    if who.account is None:
        return None
    renewed = gate.renew(who)
    if renewed is None:
        return UnauthenticatedError(REVOKED)
    if renewed is not who:
        permit.who = renewed
    return None
