"""The gate of a broker without logins: it lets everybody in, under the name that they give."""

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
        """It ignores keys and passwords: a client may have a key for a broker that asks for none
        yet."""
        return who

    def certified(self, names: Sequence[str], who: Identity, /) -> Identity | None:
        return None

    def renew(self, who: Identity, /) -> Identity | None:
        return who


OPEN_GATE = OpenGate()
