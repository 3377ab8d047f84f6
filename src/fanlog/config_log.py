"""The settings of the log: segments, retention, caches and the sync."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fanlog.config_live import LIVE
from fanlog.model import KIB, MIB


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How logs are kept on disk and in memory."""

    segment_first_bytes: Annotated[
        int,
        Meta(
            ge=4 * KIB,
            description="First allocation of a segment file. It doubles as the file fills, so "
            "that small topics stay small.",
        ),
    ] = 16 * KIB
    index_interval_bytes: Annotated[
        int,
        Meta(
            ge=1 * KIB,
            description="Log bytes between two entries of the sparse index. Fewer bytes: "
            "faster seeks, larger index.",
        ),
    ] = 32 * KIB
    read_block_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB, description="Bytes that one disk read takes for a reader that catches up."
        ),
    ] = 1 * MIB
    fetch_block_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB,
            description="Bytes that one disk read takes for a large fetch, such as Spark's.",
        ),
    ] = 4 * MIB
    read_cache_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Memory for blocks read from disk. Readers that catch up share them.",
        ),
    ] = 64 * MIB
    index_cache_bytes: Annotated[
        int,
        Meta(
            ge=64 * KIB, description="Memory for the most recently used indexes of sealed segments."
        ),
    ] = 64 * MIB
    journal_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Size of each of the two journals. A larger journal syncs segments less "
            "often.",
        ),
    ] = 64 * MIB
    open_segments_max: Annotated[
        int,
        Meta(
            ge=16,
            description="Segment files kept open for writing. More than this are closed and "
            "opened again.",
        ),
    ] = 2048
    reserve_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Disk space that the broker keeps free for itself, so that a full "
            "disk does not stop deletes and starts. At most one sixteenth of the "
            "disk.",
        ),
    ] = 8 * MIB
    reserved_files: Annotated[
        int,
        Meta(
            ge=32,
            description="File descriptors that only the log may use, so that connections "
            "can't take them all. At most half of the process limit.",
        ),
    ] = 4096
    tail_total_bytes: Annotated[
        int,
        Meta(
            ge=1 * MIB,
            description="Memory for the tails of all topic partitions together. Above it, the "
            "oldest bytes leave memory first.",
        ),
    ] = 1024 * MIB
    retention_check_seconds: Annotated[
        float, Meta(extra=LIVE, gt=0, description="Time between two retention checks.")
    ] = 30.0
    clock_trust_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="After the wall clock jumps forward, retention by age deletes nothing "
            "for this long. A wrong clock then loses no data.",
        ),
    ] = 3600.0
    compaction_keys_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Keys that one compaction holds in memory. A log with more keys is "
            "compacted in several rounds.",
        ),
    ] = 500_000
