"""Permissions of one connection. Listeners ask its `Permit`, and the permit asks the broker's one
`Authority`. Without rules everything is allowed, and asking costs one comparison.

Batches and fetches name a topic by its number, thousands of times a second. So the permit keeps the
answers about topics that its connection publishes to or fetches from.

This module alone writes refusals into the audit log. A kept answer is noted once.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from fanlog.broker.ports import Audit, Authority
from fanlog.errors import ForbiddenError
from fanlog.format.schedules import SCHEDULED_TOPIC
from fanlog.format.signals import SIGNALS_TOPIC
from fanlog.identity import Identity, Verb
from fanlog.security.rules import state_of

# Answers that a connection keeps. Others are not kept: this limits what a client can make the
# broker remember with names that do not exist.
KEPT_MAX = 10_000
# Marks an answer that is not kept.
_UNKNOWN = ForbiddenError("")
# Reads: the audit log has them with the level `all`. Changes are recorded when they are made.
_LOOKS = frozenset({Verb.SUBSCRIBE, Verb.DESCRIBE, Verb.GROUP, Verb.QUEUE, Verb.PRESENCE})


class AllowAll:
    """The authority of a broker without rules."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        return None


ALLOW_ALL = AllowAll()


class Authorizing(Protocol):
    """The broker, as far as permits need it."""

    authority: Authority
    # Number of refusals since the start, by verb.
    denied: dict[str, int]
    permissions_epoch: int

    @property
    def audit(self) -> Audit: ...


class KeptAnswers(Protocol):
    """Kept answers of a permit. They are cleared when its connection logs in as somebody else."""

    def clear(self) -> None: ...


class Permit:
    """The permissions of one connection. `who` may be replaced when the connection logs in."""

    __slots__ = ("_broker", "_epoch", "_kept", "_trusted", "_who", "kept_elsewhere")

    def __init__(self, broker: Authorizing, who: Identity, *, trusted: bool = False) -> None:
        """`trusted` is for the program that the broker runs in: it is never asked."""
        self._broker = broker
        self._who = who
        self._trusted = trusted
        self._epoch = broker.permissions_epoch
        self._kept: dict[tuple[Verb, str], ForbiddenError | None] = {}
        # Copies of answers in other forms, such as `AllowedPartitions`.
        self.kept_elsewhere: KeptAnswers | None = None

    @property
    def who(self) -> Identity:
        return self._who

    @who.setter
    def who(self, who: Identity) -> None:
        self._who = who
        self._kept.clear()
        if self.kept_elsewhere is not None:
            self.kept_elsewhere.clear()

    @property
    def guarded(self) -> bool:
        """Whether there is anything to ask."""
        return self._broker.authority is not ALLOW_ALL and not self._trusted

    @property
    def owner(self) -> str:
        """The owner of topics that this connection creates."""
        account = self._who.account
        return "" if account is None else account.name

    def check_owner(self, settings: Container[str]) -> None:
        """Raises ForbiddenError if these settings of a topic choose an owner, and this connection
        may not."""
        if "owner" in settings:
            self.ask(Verb.ADMIN, "")

    def ask_dead_letter_topic(self, dead_letter: object) -> None:
        """The broker publishes dead letters. Raises ForbiddenError if a worker chooses a topic for
        them that it may not publish to itself."""
        if dead_letter and isinstance(dead_letter, str):
            self.ask(Verb.PUBLISH, dead_letter)

    def ask(self, verb: Verb, name: str) -> None:
        """Raises ForbiddenError if this connection may not do it, which the audit log then has."""
        refusal = self.maybe_refusal(verb, name)
        self._note(verb, name, refusal)
        if refusal is not None:
            raise refusal

    def _note(self, verb: Verb, name: str, refusal: ForbiddenError | None) -> None:
        audit = self._broker.audit
        if refusal is not None:
            denied = self._broker.denied
            denied[verb.value] = denied.get(verb.value, 0) + 1
            audit.note(self._who, verb.value, name, "denied")
        elif audit.reads and verb in _LOOKS and not self._trusted:
            audit.note(self._who, verb.value, name, "ok")

    def _ask(self, verb: Verb, name: str) -> None:
        if not self.guarded:
            return
        # Signals command other processes.
        if name == SIGNALS_TOPIC:
            verb, name = Verb.ADMIN, ""
        self._broker.authority.authorize(self._who, verb, name)

    def may(self, verb: Verb, name: str) -> bool:
        """Whether it is allowed; for lists, which leave out what the peer may not see."""
        return self.maybe_refusal(verb, name) is None

    def ask_any(self, verbs: tuple[Verb, ...], name: str) -> None:
        """Raises the first verb's error if all of them are refused."""
        if not any(self.may(verb, name) for verb in verbs):
            self.ask(verbs[0], name)

    def ask_state(self, verb: Verb, name: str) -> None:
        """Raises unless this connection may see the state of a group or a queue, by its verb or
        because it may describe it."""
        if not self.may_see(verb, name):
            self.ask(verb, name)

    def may_see(self, verb: Verb, name: str) -> bool:
        return self.may(verb, name) or self.may(Verb.DESCRIBE, state_of(verb, name))

    def maybe_refusal(self, verb: Verb, name: str) -> ForbiddenError | None:
        try:
            self._ask(verb, name)
        except ForbiddenError as refusal:
            return refusal
        return None

    def may_publish(self, topic: str) -> ForbiddenError | None:
        """The error if it may not publish to a topic; the answer is kept."""
        # For a delayed message the target topic is checked.
        if topic == SCHEDULED_TOPIC:
            return None
        return self._keep(Verb.PUBLISH, topic)

    def may_fetch(self, topic: str) -> ForbiddenError | None:
        """The same for reading from it."""
        return self._keep(Verb.SUBSCRIBE, topic)

    def may_replace(self, id: str) -> ForbiddenError | None:
        """The error if it may not replace the delayed message with this id."""
        refusal = self.maybe_refusal(Verb.SCHEDULE, id)
        if refusal is not None:
            self._note(Verb.SCHEDULE, id, refusal)
        return refusal

    def _keep(self, verb: Verb, name: str) -> ForbiddenError | None:
        # First the most common case of a publisher's read.
        if self._epoch == self._broker.permissions_epoch:
            known = self._kept.get((verb, name), _UNKNOWN)
            if known is not _UNKNOWN:
                return known
        if not self.guarded and (self._trusted or not self._broker.audit.reads):
            return None
        kept = self._kept
        if self._epoch != self._broker.permissions_epoch or len(kept) >= KEPT_MAX:
            self._epoch = self._broker.permissions_epoch
            kept.clear()
        key = (verb, name)
        if key not in kept:
            kept[key] = self.maybe_refusal(verb, name)
            self._note(verb, name, kept[key])
        return kept[key]
