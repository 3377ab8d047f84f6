"""What the broker needs from the outside, declared by the broker and plugged in by `node.py` and
the listeners. The way out to a reader, `Outlet`, is beside the cursors that use it, in
`messages/topics.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from fanlog.errors import FanlogError
from fanlog.format.messages import Joined, Notice
from fanlog.format.settings import OptionsShown, SettingsChanged, SettingsShown, SettingValue
from fanlog.identity import Identity, Login, Verb
from fanlog.model import Gap
from fanlog.security.audit import AuditResult

T = TypeVar("T")
SendBuffer = bytes | memoryview
# What became of something that is written down in the audit log.


@runtime_checkable
class Addressed(Protocol):
    """An outlet over the network: it knows where its peer is."""

    peer: str


class Reader(Protocol):
    """Who is told what happens to a subscription, in the order of its messages."""

    def gap(self, gap: Gap, number: int) -> None: ...
    def joined(self, joined: Joined) -> None: ...
    def left(self, number: int, name: str) -> None: ...
    def notice(self, notice: Notice) -> None: ...


class Origin(Protocol):
    """Who published: gets acknowledgements, collected and handed over once a turn."""

    def acknowledge(self, entries: list[bytes]) -> None:
        """Each entry is an `ACK_ENTRY` of the native protocol."""
        ...

    def refuse(
        self,
        number: int,
        partition: int,
        first_sequence: int,
        expected_sequence: int,
        error: FanlogError,
    ) -> None: ...


class Opener(Protocol):
    """Who has opened topics to publish to them, and must know how many partitions they have."""

    def grew(self, number: int, partitions: int) -> None: ...


class Authority(Protocol):
    """Who may do what: the one question that every listener asks before it does something.

    A pattern is allowed only if every topic that it can match is. Listeners keep an answer for as
    long as a connection has a topic open, so an authority that changes its mind calls
    `Broker.permissions_changed`."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        """Raises ForbiddenError if not. It is called on the loop and must not wait."""
        ...


class Gate(Protocol):
    """Lets peers in: it turns what a peer shows into who it is. `broker/gate.py` has the one of a
    broker without logins."""

    @property
    def guarded(self) -> bool:
        """Whether a peer has to log in before it may do anything."""
        ...

    def arrive(self, who: Identity, /) -> Identity:
        """Who a peer is that shows nothing. Raises UnauthenticatedError if it has to log in."""
        ...

    async def login(self, login: Login, who: Identity, /) -> Identity:
        """Who a peer is by what it shows. Raises UnauthenticatedError, or RateLimitedError after
        too many wrong ones."""
        ...

    def certified(self, names: Sequence[str], who: Identity, /) -> Identity | None:
        """Who a peer is by the names in its client certificate; None if they are nobody's."""
        ...

    def renew(self, who: Identity, /) -> Identity | None:
        """Who somebody is now, after keys, users or rules changed or time has passed. None: not let
        in any more."""
        ...


class Audit(Protocol):
    """Who did what to what, with which result. `broker/state/audit.py` has the one that writes it
    down, and the one that does not."""

    @property
    def on(self) -> bool:
        """Whether anything is written down at all."""
        ...

    @property
    def reads(self) -> bool:
        """Whether what only looks is written down, too."""
        ...

    def note(
        self, who: Identity, action: str, name: str, result: AuditResult, detail: str = "", /
    ) -> None:
        """Constant work on the loop, and never raises. Actions have dots: `topic.delete`, `login`.
        `name` is what it was done to. Neither `name` nor `detail` may hold a secret."""
        ...


class LiveSettings(Protocol):
    """Shows and changes settings while the broker runs. Whoever started it has them: `fanlog serve`
    has a file, and a program none."""

    def show(self) -> SettingsShown:
        """All settings, with where each comes from."""
        ...

    def describe(self) -> OptionsShown:
        """What each setting is for, and what it may be."""
        ...

    async def change(
        self, who: Identity, values: dict[str, SettingValue | None], *, temporary: bool
    ) -> SettingsChanged:
        """Changes settings, all or none of them; None takes one back to its default. They are
        written to the file, unless they are `temporary`: then they last until the next start.
        Raises InvalidArgumentError or ConfigError."""
        ...

    async def reload(self, who: Identity) -> SettingsChanged:
        """Reads the file again, and takes all of it or, if something is wrong, nothing."""
        ...


class Runtime(Protocol):
    """Two clocks, and the places where work runs: the loop, and threads that may block."""

    def now_us(self) -> int:
        """The wall clock: for what is stored, or shown to people. Somebody may set it, so that
        it jumps in both directions."""
        ...

    def monotonic_us(self) -> int:
        """A clock that nobody can set, and that does not count the time in which the broker was
        stalled: for every duration. It means nothing in another process, so it is never stored."""
        ...

    def work_us(self) -> int:
        """The same with all the time that passes: for how long a piece of work holds the loop."""
        ...

    def soon(self, call: Callable[[], None], /) -> object:
        """Runs `call` on the loop after what is ready now."""
        ...

    def in_thread(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Runs short work, such as a read for someone who waits, in a thread. Hands its result or
        exception to `done` on the loop."""
        ...

    def in_background(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """The same for work that may take seconds. It has threads of its own, so that it never
        delays what `in_thread` runs. A caller has few at a time: they share these threads."""
        ...
