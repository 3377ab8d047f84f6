"""Interfaces that the broker needs; `node.py` and the listeners implement them. `Outlet`, the
interface to a reader's connection, is beside the cursors in `messages/topics.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from fanlog.errors import FanlogError
from fanlog.format.cluster_view import ClusterStatus, MovePreview
from fanlog.format.messages import ConnectionPage, ConnectionsRequest, Joined, Notice
from fanlog.format.replication import Applied, Follow, Followed, ReplicaEnds
from fanlog.format.settings import OptionsShown, SettingsChanged, SettingsShown, SettingValue
from fanlog.identity import Identity, Login, Verb
from fanlog.model import Gap
from fanlog.security.audit import AuditResult
from fanlog.telemetry.snapshot import ListenerMetrics, WorkerMetrics

T = TypeVar("T")
SendBuffer = bytes | memoryview
# The result of an action in the audit log.


@runtime_checkable
class Addressed(Protocol):
    """An outlet over the network: it knows where its peer is."""

    peer: str


class Reader(Protocol):
    """Receives the events of a subscription, in the order of its messages."""

    def gap(self, gap: Gap, number: int) -> None: ...
    def joined(self, joined: Joined) -> None: ...
    def left(self, number: int, name: str) -> None: ...
    def notice(self, notice: Notice) -> None: ...


class Origin(Protocol):
    """A publisher's connection: gets acknowledgements, collected once a turn."""

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
    """A publisher with open topics, which must know their number of partitions."""

    def grew(self, number: int, partitions: int) -> None: ...


class Authority(Protocol):
    """Permissions: every listener asks here before it acts.

    A pattern is allowed only if every topic that it can match is. Listeners keep an answer for as
    long as a connection has a topic open, so an authority that changes its mind calls
    `Broker.permissions_changed`."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        """Raises ForbiddenError if not. It is called on the loop and must not wait."""
        ...


class Gate(Protocol):
    """Authenticates peers: it maps credentials to an identity. `broker/gate.py` has the one for a
    broker without logins."""

    @property
    def guarded(self) -> bool:
        """Whether a peer has to log in before it may do anything."""
        ...

    def arrive(self, who: Identity, /) -> Identity:
        """The identity of a peer without credentials. Raises UnauthenticatedError if it has to log
        in."""
        ...

    async def login(self, login: Login, who: Identity, /) -> Identity:
        """The identity for these credentials. Raises UnauthenticatedError, or RateLimitedError
        after too many wrong ones."""
        ...

    def certified(self, names: Sequence[str], who: Identity, /) -> Identity | None:
        """The identity for the names in a client certificate; None if they match no account."""
        ...

    def renew(self, who: Identity, /) -> Identity | None:
        """The current identity, after keys, users or rules changed or time has passed. None if the
        login is no longer valid."""
        ...


class Audit(Protocol):
    """Records actions: who, what, on which object, with which result. `broker/state/audit.py` has
    one that writes, and one that does nothing."""

    @property
    def on(self) -> bool:
        """Whether anything is recorded."""
        ...

    @property
    def reads(self) -> bool:
        """Whether reads are recorded, too."""
        ...

    def note(
        self, who: Identity, action: str, name: str, result: AuditResult, detail: str = "", /
    ) -> None:
        """Constant work on the loop, and never raises. Actions have dots: `topic.delete`, `login`.
        `name` is the object. Neither `name` nor `detail` may hold a secret."""
        ...


class FollowerPort(Protocol):
    """One follower, as its connection sees it."""

    def begin(self) -> None:
        """The answer to its request is sent."""
        ...

    def ends(self, page: ReplicaEnds) -> None: ...
    def take_applied(self, applied: Applied) -> None: ...
    def gone(self) -> None: ...


class Followers(Protocol):
    """The followers of a primary; `cluster/` has the implementation."""

    def follow(self, wanted: Follow, outlet: object) -> tuple[Followed, FollowerPort]:
        """A node wants to follow. Raises UnavailableError if this one is not its primary."""
        ...

    def resume(self, outlet: object) -> None:
        """A connection takes more."""
        ...


class WorkerProcesses(Protocol):
    """The processes that have the clients of this broker, where it runs on several cores."""

    @property
    def connections(self) -> int: ...
    @property
    def subscriptions(self) -> int: ...
    @property
    def delivered_messages(self) -> int: ...
    @property
    def delivered_bytes(self) -> int: ...
    def problems(self) -> list[str]: ...
    def metrics(self) -> tuple[WorkerMetrics, ...]: ...
    def listener(self, name: str) -> ListenerMetrics:
        """A listener of all of them together."""
        ...

    async def find_connections(
        self, wanted: ConnectionsRequest, here: ConnectionPage
    ) -> ConnectionPage:
        """Lists or closes their connections. `here` are those of this process."""
        ...


class ClusterPort(Protocol):
    """The cluster that this process is a node of; `cluster/` has the implementation."""

    def status(self) -> ClusterStatus: ...

    async def move(self, node: str, *, dry_run: bool) -> MovePreview:
        """Asks for a switch-over to a node; `dry_run` only says what it means. Raises
        InvalidArgumentError if there is no such node, UnavailableError if it can't be now."""
        ...


class LiveSettings(Protocol):
    """Shows and changes settings at runtime. `fanlog serve` has a file for them, and an embedding
    program has none."""

    def show(self) -> SettingsShown:
        """All settings, with where each comes from."""
        ...

    def describe(self) -> OptionsShown:
        """The purpose and the allowed values of each setting."""
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
    """Two clocks, and where work runs: on the loop, or in threads that may block."""

    def now_us(self) -> int:
        """The wall clock: for stored and displayed times. It can be set, so it may jump in both
        directions."""
        ...

    def monotonic_us(self) -> int:
        """A clock that can't be set, and that does not count the time in which the broker was
        stalled: for every duration. It has no meaning in another process, so it is never stored."""
        ...

    def work_us(self) -> int:
        """The same, but stalls count: to measure how long work holds the loop."""
        ...

    def soon(self, call: Callable[[], None], /) -> object:
        """Runs `call` on the loop after what is ready now."""
        ...

    def in_thread(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Runs short work, such as a read for a waiting client, in a thread. Calls `done` on the
        loop with its result or exception."""
        ...

    def in_background(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """The same for work that may take seconds. It has its own threads, so that it never delays
        `in_thread`. A caller uses few at a time: the threads are shared."""
        ...
