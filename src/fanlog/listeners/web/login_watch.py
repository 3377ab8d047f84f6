"""Watches when the login of an open connection expires. The client gets a notice before that, and
can send a new token without a reconnect."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from fanlog.listeners.web import operations as ops

if TYPE_CHECKING:
    from fanlog.listeners.web.entrance import Guest
    from fanlog.listeners.web.listener_port import WebPort

_SECOND_US = 1_000_000


class LoginWatch:
    """Each open connection asks once a second."""

    __slots__ = ("_guest", "_listener", "_warned_of")

    def __init__(self, listener: WebPort, guest: Guest) -> None:
        self._listener = listener
        self._guest = guest
        # The end in the last notice to the client.
        self._warned_of = 0

    def look(self) -> Literal["good", "ends", "over"]:
        """Whether the login is valid, ends soon (returned once), or has expired."""
        expires_us = self._guest.expires_us
        if not expires_us:
            return "good"
        left_us = expires_us - self._listener.core.now_us()
        if left_us <= 0:
            return "over"
        warning = self._listener.entrance.security.expiry_warning_seconds
        if left_us <= warning * _SECOND_US and self._warned_of != expires_us:
            self._warned_of = expires_us
            return "ends"
        return "good"

    def logged_in(self) -> ops.LoggedInAnswer:
        """The answer to a login."""
        expires_us = self._guest.expires_us
        return ops.LoggedInAnswer(self._guest.who.user, time_text(expires_us) if expires_us else "")

    def frame(self) -> ops.ExpiringFrame:
        """The notice to the client."""
        expires_us = self._guest.expires_us
        left_us = max(0, expires_us - self._listener.core.now_us())
        return ops.ExpiringFrame(expires=time_text(expires_us), seconds=left_us // _SECOND_US)


def time_text(at_us: int) -> str:
    """A time in RFC 3339, in UTC."""
    at = datetime.fromtimestamp(at_us // _SECOND_US, UTC)
    return at.isoformat().replace("+00:00", "Z")
