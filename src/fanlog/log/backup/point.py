"""One point of a broker's history: how far each log was, in one moment, and the files that hold it.

A point is taken on the broker's loop, between two pieces of work, so that all logs, the ledgers of
groups, queues, producers and transactions among them, are as of one moment. It is what a crash in
that moment would leave if it lost nothing, and a start brings a broker back from that.

Law: bytes of a log before its end never change. So a point is a list of files and lengths, and it
is enough that the files stay: they get a second name (a hard link) in a folder of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import msgspec

from fanlog.errors import BackupError
from fanlog.log.backup.moment import LogMoment
from fanlog.log.opening import StoredTopic
from fanlog.log.partition_notes import Compacted
from fanlog.log.segment import base_name
from fanlog.log.segment_names import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, plain_stem
from fanlog.model import INTERNAL_PREFIX, DamagedRange, TopicSettings


class FileEntry(msgspec.Struct, array_like=True):
    """A file of a point: of its bytes the first `bytes` count. A `sealed` one never changes; the
    inode and the time tell whether it is still the same file. `kept_as` and `crc` are the
    backup's: where it has the file, and the CRC-32C of what counts."""

    path: str
    bytes: int
    sealed: bool
    inode: int = 0
    mtime_ns: int = 0
    kept_as: str = ""
    crc: int = 0


class LogEntry(msgspec.Struct):
    """One partition at a point. Its files are in the order of their offsets."""

    partition: int
    end_offset: int
    deleted_before: int = 0
    compacted: Compacted | None = None
    ranked: bool = False
    damaged: list[DamagedRange] = []
    files: list[FileEntry] = []


class TopicEntry(msgspec.Struct):
    """A topic at a point, and the name of its folder among the topics."""

    name: str
    number: int
    folder: str
    settings: TopicSettings
    logs: list[LogEntry] = []


class BackupPoint(msgspec.Struct):
    """What a manifest says. `history` names the data folder: it changes when a folder is restored,
    because from then on the same offsets hold other messages."""

    history: str
    epoch: int
    next_topic: int
    taken_us: int
    release: str
    restored_from: str = ""
    memory_topics: int = 0
    # Folders of topics that the broker could not open.
    left_aside: int = 0
    topics: list[TopicEntry] = []
    staged: list[FileEntry] = []

    @property
    def topic_count(self) -> int:
        """Without those of the broker's own."""
        return sum(not topic.name.startswith(INTERNAL_PREFIX) for topic in self.topics)

    def files(self) -> list[FileEntry]:
        """All files, always in the same order."""
        logs = (log for topic in self.topics for log in topic.logs)
        return [*(file for log in logs for file in log.files), *self.staged]


def encode_listing(point: BackupPoint) -> Iterator[bytes]:
    """A point as lines of JSON: all of it but the topics, then each topic. A broker's thread that
    encodes all topics in one step would hold its loop up."""
    yield _line(msgspec.structs.replace(point, topics=[]))
    for topic in point.topics:
        yield _line(topic)


def _line(some: msgspec.Struct) -> bytes:
    # ASCII with escapes: a topic's name may hold lone surrogates, which no encoding takes.
    return json.dumps(msgspec.to_builtins(some)).encode() + b"\n"


def decode_listing(data: bytes) -> BackupPoint:
    """Raises `BackupError` for what is not a listing."""
    try:
        head, *topics = (json.loads(line) for line in data.splitlines())
        point = msgspec.convert(head, BackupPoint)
        point.topics = [msgspec.convert(topic, TopicEntry) for topic in topics]
    except (ValueError, msgspec.ValidationError) as fault:
        raise BackupError(f"The broker's list of files can't be read: {fault}.") from fault
    return point


# A topic's name, number, settings and folder, and its logs in the moment of a point.
TopicMoment = tuple[str, int, TopicSettings, str, list[LogMoment]]


def topics_now(topics: Iterable[StoredTopic]) -> list[TopicMoment]:
    """All topics with files, on the loop thread: about a microsecond for each log."""
    return [
        (
            topic.name,
            topic.number,
            topic.settings,
            topic.folder,
            [found for log in topic.logs if (found := log.moment()) is not None],
        )
        for topic in topics
    ]


def log_entry(moment: LogMoment) -> LogEntry:
    """What a point keeps of a log. The paths are relative to the log's folder so far."""
    disk, segments, to_delete, position, end_offset, producers_base, deleted, compacted = moment
    files: list[FileEntry] = []
    # Dropped, but who wrote them is not durable anywhere else yet.
    unproven = [segment for segment in to_delete if segment.next_offset > producers_base]
    for segment in (*unproven, *segments[:-1]):
        name = base_name(segment)
        files.append(FileEntry(name + LOG_SUFFIX, segment.bytes, sealed=True))
        files.append(FileEntry(name + INDEX_SUFFIX, 0, sealed=True))
    if segments:
        files.append(FileEntry(base_name(segments[-1]) + LOG_SUFFIX, position, sealed=False))
    if producers_base >= 0:
        files.append(FileEntry(plain_stem(producers_base) + PRODUCERS_SUFFIX, 0, sealed=True))
    return LogEntry(
        disk.owner.partition,
        end_offset,
        deleted,
        None if compacted == Compacted() else compacted,
        # What is found out later does no harm.
        disk.ranked,
        [r for r in disk.quarantine.ranges if r.first < end_offset],
        files,
    )
