"""What a cluster needs from etcd, as a port: reads, compare-and-swap, keys under a lease, a watch.

Law: a read is linearizable. Faults have three classes. *Not now*: `CoordinationError`; try again.
*Lost the race*: `Lost`; read and decide again. *Ours*: `CoordinationRefusedError`; an operator must
act. A fault of no known class is *not now*, so that none of them demotes a healthy primary.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol


class Stored(NamedTuple):
    """One key. `revision` is that of its last change (etcd's mod revision)."""

    key: str
    value: bytes
    revision: int


class Listing(NamedTuple):
    """All keys under a prefix, at one revision of etcd. `etcd` is etcd's own cluster id. `floor` is
    the newest revision that this client knew when it asked."""

    etcd: str
    revision: int
    stored: tuple[Stored, ...]
    floor: int = 0

    @property
    def has_gone_back(self) -> bool:
        """Whether etcd has lost revisions. A listing that is only late has not."""
        return self.revision < self.floor


class Swapped(NamedTuple):
    """The new value is stored."""

    revision: int


class Lost(NamedTuple):
    """The key was not as expected: nothing has changed."""

    current: Stored | None


class NotSent(NamedTuple):
    """The request never reached etcd: it will have no effect."""

    reason: str


class Unknown(NamedTuple):
    """The request may have had its effect, may have none, or may have it later."""

    reason: str


SwapOutcome = Swapped | Lost | NotSent | Unknown


class Coordination(Protocol):
    """An etcd. Raises `CoordinationError` and `CoordinationRefusedError`."""

    async def read(self, key: str) -> Stored | None: ...

    async def read_prefix(self, prefix: str) -> Listing: ...

    async def swap(self, key: str, expected: Stored | None, value: bytes) -> SwapOutcome:
        """Stores `value` if the key still has the value and the revision that are expected. None:
        if the key is not there. Raises only if nothing can have happened."""
        ...

    async def delete(self, key: str, expected: Stored) -> SwapOutcome:
        """Removes the key if it still is as expected."""
        ...

    async def put_leased(self, key: str, value: bytes) -> None:
        """Keeps a key with this value, under a lease, until `close`. It does not wait for etcd.
        The key vanishes some seconds after the event loop has stopped running."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Listing]:
        """All keys under the prefix, now and after each change. It raises when etcd is not there;
        watch again to continue."""
        ...

    async def close(self) -> None:
        """Ends the lease: its keys vanish at once, if etcd can be reached."""
        ...
