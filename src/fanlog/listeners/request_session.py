"""A native session as the handlers of requests see it: `*_requests.py`, `fetches.py`, `audited.py`.

Law: a handler takes this port. It does not know `native.py`, which has the table of all handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeAlias

import msgspec

from fanlog.broker.authority import Permit
from fanlog.broker.broker_core import BrokerCore
from fanlog.broker.messages.restrictions import Restrictions
from fanlog.broker.messages.topics import BrokerSubscription
from fanlog.broker.ports import FollowerPort
from fanlog.config import ListenerOptions
from fanlog.errors import FanlogError
from fanlog.format import messages
from fanlog.format.long_messages import EncodedMessage
from fanlog.identity import Identity, Login, Verb
from fanlog.listeners.notifier import NativeOutlet, Notifier

# Requests for a subscription that may take a while to begin.
Beginning = messages.Subscribe | messages.Work | messages.JoinGroup
# The message of an answer, which may be encoded already.
RequestAnswer: TypeAlias = msgspec.Struct | list[Any] | EncodedMessage | None


class RequestSession(Restrictions, Protocol):
    """One peer, what it may do, and how its requests are answered."""

    broker: BrokerCore
    outlet: NativeOutlet
    options: ListenerOptions
    permit: Permit
    # The peer is the program that the broker runs in.
    trusted: bool
    client: str
    subscriptions: dict[int, BrokerSubscription]
    # Names of producers that the peer has, or had: the id and epoch of each.
    registered: dict[str, tuple[int, int]]
    # Called when the peer is gone, by subject.
    at_close: dict[str, Callable[[], None]]
    # Whether the answer to a change of its own account is pending.
    spared: bool
    # The link of a follower; None for clients.
    follower: FollowerPort | None

    @property
    def who(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...

    # Answers

    def answer(self, request: int, answer: RequestAnswer = None) -> None: ...
    def fail(self, request: int, fault: FanlogError) -> None: ...
    def answer_durably(self, request: int, answer: RequestAnswer = None) -> None: ...
    def answer_committed(self, request: int, answer: RequestAnswer) -> None: ...
    def when_durable(
        self, request: int, resume: Callable[[], None], after: Iterator[object] | None = None
    ) -> None: ...
    def hold_up(self) -> None: ...
    def go_on(self) -> None: ...
    def later(self, request: int, work: Coroutine[Any, Any, None]) -> None: ...

    # Subscriptions

    def ask_all(self, *asked: tuple[Verb, str]) -> tuple[tuple[Verb, str], ...]: ...
    def check_number(self, number: int) -> None: ...
    def begin(self, number: int, wanted: Beginning) -> None: ...
    def has_begun(self, number: int, wanted: Beginning) -> bool: ...
    def keep(
        self, number: int, subscription: BrokerSubscription, asked: tuple[tuple[Verb, str], ...]
    ) -> None: ...
    def notifier_of(self, number: int) -> Notifier: ...
    def tell_at_start(self, subscription: BrokerSubscription) -> None: ...

    # Publishing

    def weigh(self, batches: bytes) -> None: ...
    def hear_of_growth(self) -> None: ...

    # Login

    def become(self, who: Identity) -> None: ...
    def logged_in_again(self, shown: Login) -> None: ...
    def no_longer_spared(self) -> None: ...


NativeHandler = Callable[[RequestSession, int, int, memoryview], None]
