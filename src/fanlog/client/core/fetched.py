"""The answer to a fetch: where the partition begins and ends, and whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fanlog.format.batch import Batch, check_batch
from fanlog.format.codecs import FORMAT_LIMITS, UnpackLimits
from fanlog.format.frames import FETCHED_HEAD
from fanlog.format.header import BatchHeader, read_header


class Fetched(NamedTuple):
    visible_end: int
    start_offset: int
    batches: list[Batch]


def fetched_batches(payload: bytes, *, verify: bool = True) -> Iterator[tuple[int, BatchHeader]]:
    """Where each batch of an answer begins, and its header."""
    at = FETCHED_HEAD.size
    while at < len(payload):
        header = check_batch(payload, at) if verify else read_header(payload, at)
        yield at, header
        at += header.length


def read_fetched(
    payload: bytes, topic_name: str, *, verify: bool = True, limits: UnpackLimits = FORMAT_LIMITS
) -> Fetched:
    visible_end, start_offset, _ = FETCHED_HEAD.unpack_from(payload)
    view = memoryview(payload)
    batches = [
        Batch(view[at : at + header.length], header, topic_name, limits)
        for at, header in fetched_batches(payload, verify=verify)
    ]
    return Fetched(visible_end, start_offset, batches)
