"""The gate of a broker without logins: everybody is let in, as whoever they say they are."""

from __future__ import annotations

from collections.abc import Sequence

from fanlog.identity import Identity, Login


class OpenGate:
    """Asks nobody."""

    @property
    def guarded(self) -> bool:
        return False

    def arrive(self, who: Identity, /) -> Identity:
        return who

    async def login(self, login: Login, who: Identity, /) -> Identity:
        """What is shown is not looked at: a client may have a key for a broker that asks for none
        yet."""
        return who

    def certified(self, names: Sequence[str], who: Identity, /) -> Identity | None:
        return None

    def renew(self, who: Identity, /) -> Identity | None:
        return who


OPEN_GATE = OpenGate()
