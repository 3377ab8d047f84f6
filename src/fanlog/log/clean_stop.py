"""The mark of a clean stop, `<data>/clean`: what a scan of each log's newest segment would find.

`FANLCLN1`, a CRC-32C of the rest (4 bytes), and a `CleanStop` in MessagePack. A stop writes it
last; the next start reads it, and removes it before it writes anything else. So it exists only if
nothing was written since.

Law: it is a shortcut. A log is scanned if it has no entry, if its newest file is another one or has
another size, or if the last stretch of that file does not hold what the entry says. Logs that no
stop syncs (durability `os`) are scanned too if the machine was started again meanwhile: nobody
knows what of them got to the disk.
"""

from __future__ import annotations

import logging
import os
from array import array

import msgspec

from fanlog.errors import FormatError
from fanlog.format.checksum import crc32c
from fanlog.log.disk import DiskLog
from fanlog.log.files import read_file, remove_if_there, replace_file
from fanlog.log.index import Index
from fanlog.log.producers import ProducerRuns, decode_producers, encode_producers
from fanlog.log.scan import Damage, Owner, walk_file
from fanlog.log.segment import Segment, log_path
from fanlog.model import MIB

logger = logging.getLogger("fanlog.log")

_MAGIC = b"FANLCLN1"
_CRC_BYTES = 4
# Logs past it are scanned: a start should not read more than it saves.
_BYTES_MAX = 64 * MIB
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class CleanLog(msgspec.Struct, frozen=True, array_like=True):
    """One log at a clean stop. The entries of its newest segment's index are three columns."""

    topic: int
    partition: int
    base: int
    end_offset: int
    position: int
    size: int
    index_at: int
    last_time_us: int
    index: tuple[bytes, bytes, bytes]
    producers: bytes


class CleanStop(msgspec.Struct, frozen=True, array_like=True):
    """All logs at a clean stop, and which run of the machine that was in."""

    boot: str
    logs: list[CleanLog]


def boot_id() -> str:
    """Identifies this boot of the machine; empty if the system does not tell."""
    try:
        return read_file(_BOOT_ID).decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def describe(disk: DiskLog, end_offset: int) -> CleanLog | None:
    """Describes a log at a clean stop; None if it has no files."""
    if not disk.segments or disk.deleted:
        return None
    active = disk.segments[-1]
    assert active.index is not None
    columns = active.index.positions, active.index.times, active.index.offsets
    histories = () if disk.producers is None else disk.producers()
    return CleanLog(
        topic=disk.owner.topic,
        partition=disk.owner.partition,
        base=active.base,
        end_offset=end_offset,
        position=disk.position,
        size=os.stat(log_path(disk.folder, active)).st_size,
        index_at=disk.index_at,
        last_time_us=disk.last_time_us,
        index=(columns[0].tobytes(), columns[1].tobytes(), columns[2].tobytes()),
        producers=encode_producers(end_offset, histories, disk.epochs),
    )


def save_clean(folder: str, logs: list[CleanLog]) -> None:
    """Makes the mark durable."""
    kept: list[CleanLog] = []
    size = 0
    for log in logs:
        size += len(log.producers) + 3 * len(log.index[0])
        if size > _BYTES_MAX:
            break
        kept.append(log)
    body = msgspec.msgpack.encode(CleanStop(boot_id(), kept))
    data = _MAGIC + crc32c(body).to_bytes(_CRC_BYTES, "little") + body
    replace_file(f"{folder}/clean", data, durable=True)


class Cleaned:
    """The mark that a start found: which logs it is valid for."""

    def __init__(self, stop: CleanStop | None = None) -> None:
        self._same_boot = stop is not None and bool(stop.boot) and stop.boot == boot_id()
        self.found = stop is not None
        logs = [] if stop is None else stop.logs
        self._logs = {Owner(log.topic, log.partition): log for log in logs}

    def get(self, owner: Owner, *, synced: bool) -> CleanLog | None:
        """The stop's description of a log, if it can still be true."""
        return self._logs.get(owner) if synced or self._same_boot else None


def take_clean(folder: str) -> Cleaned:
    """Reads the mark and removes it. The caller makes that durable before it writes anything."""
    path = f"{folder}/clean"
    try:
        data = read_file(path)
    except FileNotFoundError:
        return Cleaned()
    remove_if_there(path)
    try:
        return Cleaned(decode_clean(data))
    except (FormatError, msgspec.MsgspecError) as fault:
        logger.warning("%s can't be used: %s. All logs are scanned.", path, fault)
        return Cleaned()


def decode_clean(data: bytes) -> CleanStop:
    """Raises `FormatError`, or MessagePack's error, for a damaged mark."""
    body = data[len(_MAGIC) + _CRC_BYTES :]
    crc = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + _CRC_BYTES], "little")
    if data[: len(_MAGIC)] != _MAGIC or crc32c(body) != crc:
        raise FormatError("its checksum does not fit")
    return msgspec.msgpack.decode(body, type=CleanStop)


def restore(
    disk: DiskLog, segments: list[Segment], clean: CleanLog, producers: ProducerRuns
) -> bool:
    """Brings a log back as the clean stop left it. False, with nothing done, if there is any
    doubt: then it has to be scanned."""
    active = segments[-1]
    if active.name or active.base != clean.base or active.bytes != clean.size:
        return False
    if active.base and not active.has_producers:
        return False
    index = _index(clean)
    if not _ends_as_it_should(disk, active, clean, index):
        return False
    try:
        saved = decode_producers(clean.producers, clean.end_offset)
    except FormatError:
        return False
    producers.add_runs(saved.runs)
    disk.epochs = saved.epochs
    active.index = index
    disk.segments = tuple(segments)
    disk.producers_base = active.base if active.has_producers else -1
    disk.sealed_bytes = sum(segment.bytes for segment in segments[:-1])
    disk.position = clean.position
    disk.allocated = clean.size
    disk.index_at = clean.index_at
    disk.last_time_us = clean.last_time_us
    return True


def _index(clean: CleanLog) -> Index:
    index = Index()
    index.positions, index.times, index.offsets = (array("q", c) for c in clean.index)
    return index


def _ends_as_it_should(disk: DiskLog, active: Segment, clean: CleanLog, index: Index) -> bool:
    """Whether the batches from the last entry of the index on lead to the end."""
    if not clean.position:
        return clean.end_offset == active.base
    if not index.offsets:
        return False
    fd = os.open(log_path(disk.folder, active), os.O_RDONLY)
    try:
        end = 0
        for part in walk_file(
            fd,
            disk.owner,
            at=index.positions[-1],
            expected=index.offsets[-1],
            stop=clean.end_offset,
            limit=clean.position,
        ):
            if isinstance(part, Damage):
                return False
            end = part.at + part.size
        return end == clean.position
    finally:
        os.close(fd)
