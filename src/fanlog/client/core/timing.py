"""When to ping, when a broker counts as silent, when to connect again, and when to show a fresh
login. All times are handed in, in seconds of a clock that never goes back."""

from __future__ import annotations

from enum import Enum, auto

from fanlog.config import ClientOptions
from fanlog.identity import Login

# A login is refreshed when this share of its time is over, and if that fails, again after a moment.
_REFRESH_SHARE = 0.8
_REFRESH_AGAIN_SECONDS = 2.0


class HeartbeatStep(Enum):
    """The action that `Heartbeat.check` asks for."""

    REST = auto()
    PING = auto()
    SILENT = auto()


class Heartbeat:
    """Pings every `ping_seconds`; a broker that sent nothing for `silence_seconds` is silent."""

    __slots__ = ("_checked_at", "_heard_at", "_ping_seconds", "_pinged_at", "_silence_seconds")

    def __init__(self, ping_seconds: float, silence_seconds: float) -> None:
        self._ping_seconds = ping_seconds
        self._silence_seconds = silence_seconds
        self._heard_at = self._pinged_at = self._checked_at = 0.0

    def start(self, now: float) -> None:
        """The connection begins."""
        self._heard_at = self._pinged_at = self._checked_at = now

    def heard(self, now: float) -> None:
        """Bytes have come."""
        self._heard_at = now

    def check(self, now: float, expected_seconds: float) -> HeartbeatStep:
        """Called every `expected_seconds`. If a call comes much later, this program was stalled,
        and not the broker."""
        late = now - self._checked_at - expected_seconds
        self._checked_at = now
        if late > self._ping_seconds:
            self._heard_at = min(now, self._heard_at + late)
        if now - self._heard_at > self._silence_seconds:
            return HeartbeatStep.SILENT
        if now - self._pinged_at < self._ping_seconds:
            return HeartbeatStep.REST
        self._pinged_at = now
        return HeartbeatStep.PING


class ConnectAttempts:
    """Waits between attempts to connect: each is twice as long as the one before it."""

    __slots__ = ("_give_up_at", "_next_seconds", "_seconds_max")

    def __init__(self, options: ClientOptions, give_up_at: float | None = None) -> None:
        self._next_seconds = options.backoff_first_seconds
        self._seconds_max = options.backoff_max_seconds
        self._give_up_at = give_up_at

    def maybe_wait_seconds(self, now: float) -> float | None:
        """How long to wait after a failed attempt; None to give up."""
        wait = self._next_seconds
        if self._give_up_at is not None and now + wait > self._give_up_at:
            return None
        self._next_seconds = min(wait * 2, self._seconds_max)
        return wait


class LoginPlan:
    """The credentials shown to the broker, and when to show new ones. `refreshable`: the next login
    may differ, because it comes from a file or a function."""

    __slots__ = ("_refresh_at", "_refreshable", "_refused", "_shown")

    def __init__(self, *, refreshable: bool) -> None:
        self._refreshable = refreshable
        self._shown: Login | None = None
        self._refused: Login | None = None
        self._refresh_at: float | None = None

    def shown(self, login: Login | None) -> None:
        self._shown = login

    def accepted(self, now: float, expires_seconds: float) -> None:
        """The broker took the login; 0: for as long as the connection lasts."""
        self._refused = None
        self._refresh_at = None
        if expires_seconds and self._refreshable:
            self._refresh_at = now + _REFRESH_SHARE * expires_seconds

    def is_refused_for_good(self) -> bool:
        """The broker refused the login. True if it would do so again: more attempts would only
        lock the account."""
        again = self._shown is None or self._shown == self._refused
        self._refused = self._shown
        return again or not self._refreshable

    def take_due(self, now: float) -> bool:
        """Whether to show a fresh login now; asked for once."""
        if self._refresh_at is None or now < self._refresh_at:
            return False
        self._refresh_at = None
        return True

    def refresh_failed(self, now: float) -> None:
        self._refresh_at = now + _REFRESH_AGAIN_SECONDS
