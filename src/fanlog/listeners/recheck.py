"""Connections that stay open are looked at again when keys, users or rules have changed, and when
accounts expire: who is not let in any more is disconnected."""

from __future__ import annotations

from fanlog.broker.authority import Permit
from fanlog.broker.ports import Gate
from fanlog.errors import UnauthenticatedError
from fanlog.security.gate import REVOKED


def recheck_permit(gate: Gate, permit: Permit) -> UnauthenticatedError | None:
    """Renews who a connection is; the error if it is not let in any more. A connection that has not
    logged in yet stays as it is."""
    who = permit.who
    if who.account is None:
        return None
    renewed = gate.renew(who)
    if renewed is None:
        return UnauthenticatedError(REVOKED)
    if renewed is not who:
        permit.who = renewed
    return None
