"""Topics of its upstream that an edge has in files of its own: those of a follower of a cluster.
History that is there is read there, and upstream is not asked.

Law: a copy says no rather than give what upstream would not. The caller asks upstream then.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fanlog.log.partition import Block


class CopiedBlock(NamedTuple):
    """Whole batches, and where the copy of their partition begins and ends for readers."""

    block: Block
    start_offset: int
    visible_end: int


class OwnCopy(Protocol):
    """The copy. `epoch` is that of upstream, as the asker knows it: a copy of another reign is not
    read. `upstream_away`: nobody else can answer now."""

    def maybe_number(self, topic: str) -> int | None: ...
    def maybe_name(self, number: int) -> str | None: ...
    def has(
        self, number: int, partition: int, offset: int, *, epoch: int, upstream_away: bool
    ) -> bool:
        """Whether it has the record at an offset, and readers may see it."""
        ...

    async def read(
        self, number: int, partition: int, offset: int, bytes_wanted: int
    ) -> CopiedBlock | None:
        """The batches from the one with `offset` on. None if they can't be read after all."""
        ...

    def start_of(self, number: int, partition: int) -> int:
        """Where a partition begins."""
        ...

    async def offset_at(self, number: int, partition: int, time_us: int) -> int | None:
        """The first offset appended at or after a time; None if it is not here yet."""
        ...
