"""Where audit records are read from: a running broker, a data folder, or a file that
`fanlog audit export` has written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.client.aio import Client
from fanlog.client.message import Message
from fanlog.errors import FanlogError, FormatError, TopicNotFoundError
from fanlog.format.batch import Batch, split_batches
from fanlog.log import small_files
from fanlog.log.catalog import load_topic
from fanlog.log.read_only import SegmentFile, read_all, segment_files
from fanlog.log.scan import Damage, Owner
from fanlog.model import Gap, GapReason, Start
from fanlog.security.audit import AUDIT_TOPIC, Head, decode_record, parse_head

# Each record with its number, and what is missing between two of them.
TakeRecord = Callable[[int, bytes], None]
OnMissing = Callable[[int, int, str], None]

_CHUNK_BYTES = 1 << 20
_STALLED_SECONDS = 1.0
_NO_LOG = (
    "This broker has no audit log. Turn it on with audit.level (changes, denials or all); the "
    "first change writes the first record."
)


def no_audit_log() -> CommandError:
    return CommandError(_NO_LOG, ExitCode.NOT_FOUND)


async def read_broker(client: Client, take: TakeRecord, missing: OnMissing, start: Start) -> None:
    """All records that a broker has now, from `start` on."""
    try:
        (partition,) = (await client.describe_topic(AUDIT_TOPIC)).partitions
    except TopicNotFoundError:
        raise no_audit_log() from None
    end = partition.visible_end
    reached = max(
        partition.start_offset, (await client.find_offsets(AUDIT_TOPIC, start))[partition.partition]
    )

    def gap(found: Gap) -> None:
        nonlocal reached
        if found.reason is not GapReason.RETENTION:
            missing(found.first, found.next, "are damaged on disk")
        reached = found.next

    async with client.subscribe(AUDIT_TOPIC, start=reached, on_gap=gap) as records:
        while reached < end:
            try:
                batch = await records.next_batch(_STALLED_SECONDS)
            except TimeoutError:
                await asyncio.sleep(0)
                continue
            for message in batch.messages:
                if message.offset < end:
                    take(message.offset, _value(message))
            reached = batch.next_offset


def _value(message: Message) -> bytes:
    return b"" if message.is_tombstone else message.value


def read_folder(data: Path, take: TakeRecord, missing: OnMissing) -> None:
    """All that the files of a data folder have. A broker may be running on it."""
    folder, owner = _find(data)
    files = segment_files(folder)
    if not files:
        return
    expected = files[0].base
    for file in files:
        if file.base > expected:
            missing(expected, file.base, "are damaged on disk")
        expected = _read_file(folder, file, owner, take, missing)


def _read_file(
    folder: str, file: SegmentFile, owner: Owner, take: TakeRecord, missing: OnMissing
) -> int:
    """All records of one file. Reports damage, and continues after it. Returns the offset after the
    last record."""
    expected = file.base
    for part in read_all(folder, file, owner, chunk_bytes=_CHUNK_BYTES):
        if isinstance(part, Damage):
            if part.next is not None:
                missing(expected, part.next, "are damaged on disk")
                expected = part.next
            continue
        for at, header in split_batches(memoryview(part.data)[: part.size]):
            batch = Batch(memoryview(part.data)[at : at + header.length], header)
            for seq, value in enumerate(batch.values, header.base_offset):
                take(seq, bytes(value or b""))
        expected = part.next_offset
    return expected


def maybe_kept_head(data: Path) -> Head | None:
    """The head that the broker keeps in its data folder; None if there is none, as in a folder
    that was just restored."""
    path = data / "audit.json"
    return read_head(str(path)) if path.exists() else None


def _find(data: Path) -> tuple[str, Owner]:
    topics = data / "topics"
    try:
        names = sorted(os.listdir(topics))
    except OSError as fault:
        raise CommandError(
            f"{data} is not a data folder: {reason(fault)}", ExitCode.NOT_FOUND
        ) from None
    for name in names:
        if not name.endswith(f"-{AUDIT_TOPIC}"):
            continue
        try:
            topic = load_topic(str(topics / name))
        except (OSError, FanlogError):
            continue
        if topic.name == AUDIT_TOPIC:
            return str(topics / name / "0"), Owner(topic.number, 0)
    raise CommandError(f"There is no audit log in {data}.", ExitCode.NOT_FOUND)


def read_export(file: Path, take: TakeRecord) -> None:
    """All lines of a file, numbered one after the other."""
    try:
        with file.open("rb") as lines:
            seq = None
            for line in lines:
                value = line.rstrip(b"\n")
                seq = _first(value) if seq is None else seq + 1
                take(seq, value)
    except OSError as fault:
        raise CommandError(f"{file} can't be read: {reason(fault)}", ExitCode.NOT_FOUND) from None


def _first(value: bytes) -> int:
    try:
        return decode_record(value).seq
    except FormatError:
        return 0


def read_head(given: str) -> Head:
    """A head: as `fanlog audit head` prints it, or a file that has it, or a broker's own."""
    path = Path(given)
    if ":" in given and not path.exists():
        return parse_head(given)
    try:
        text = path.read_text(encoding="utf-8")
        if not text.lstrip().startswith("{"):
            return parse_head(text.strip().splitlines()[-1] if text.strip() else "")
        fields = small_files.load(given).fields
        return Head(int(fields["seq"]), str(fields["hash"]))
    except (OSError, UnicodeDecodeError, KeyError, ValueError, FormatError) as fault:
        why = reason(fault) if isinstance(fault, OSError) else str(fault)
        raise CommandError(
            f"{given} has no head of an audit log: {why}", ExitCode.BAD_DATA
        ) from None
