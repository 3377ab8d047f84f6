"""W3C trace context: what a message's headers say of the trace that it belongs to, and the frame
that tells the broker of it, so that it need not look into records.

`traceparent` is `00-<trace id, 32 hex>-<span id, 16 hex>-<flags, 2 hex>`; bit 0 of the flags says
that the trace is sampled. A TRACED frame is about the next batch of its connection:

| bytes | field    | meaning                                     |
| ----- | -------- | ------------------------------------------- |
| 4     | record   | the record's number in the batch, from 0    |
| 16    | trace id |                                             |
| 8     | span id  | of the span that published the record       |

There are 1 to 64 of these entries, little-endian and without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from fanlog.errors import ProtocolError
from fanlog.format.frames import FrameKind, frame

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
TRACE_HEADERS = frozenset((TRACEPARENT, TRACESTATE))
TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8
# The maximum number of sampled records of one batch that a client names to the broker. The others
# are in the trace too, by their headers; the broker has no spans for them. It bounds what a batch
# can cost.
TRACED_RECORDS_MAX = 64
KIND_TRACED = int(FrameKind.TRACED)

_ENTRY = Struct("<I16s8s")
ENTRY_BYTES = _ENTRY.size
_SAMPLED = 0x01
_TRACEPARENT_LENGTH = 55
_HEX = frozenset("0123456789abcdef")


class TraceContext(NamedTuple):
    """The span that something belongs under, and whether its trace is recorded."""

    trace_id: bytes
    span_id: bytes
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """The text that goes into headers."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{'01' if self.sampled else '00'}"


class SampledRecord(NamedTuple):
    """A sampled record of a batch, by its number there."""

    record: int
    trace_id: bytes
    span_id: bytes


def maybe_context(traceparent: str | bytes | None) -> TraceContext | None:
    """What a `traceparent` says; None if it is none. Others may have made it, so anything may be
    in it, and a bad one is as good as none."""
    if traceparent is None:
        return None
    if not isinstance(traceparent, str):
        if len(traceparent) > 4 * _TRACEPARENT_LENGTH:
            return None
        traceparent = bytes(traceparent).decode("ascii", "replace")
    traceparent = traceparent.strip()
    version, *parts = traceparent.split("-")
    later = version != "00"
    if len(version) != 2 or version == "ff" or not _HEX.issuperset(version):
        return None
    # Later versions may have more behind the flags.
    if len(parts) < 3 or (len(parts) > 3 and not later):
        return None
    trace_id, span_id, flags = parts[:3]
    if (len(trace_id), len(span_id), len(flags)) != (32, 16, 2):
        return None
    if not _HEX.issuperset(trace_id + span_id + flags):
        return None
    context = TraceContext(
        bytes.fromhex(trace_id), bytes.fromhex(span_id), bool(int(flags, 16) & _SAMPLED)
    )
    return context if any(context.trace_id) and any(context.span_id) else None


def context_of(headers: Mapping[str, bytes] | None) -> TraceContext | None:
    """The trace context in a message's headers."""
    return maybe_context(headers.get(TRACEPARENT)) if headers else None


def traced_frame(marks: Sequence[SampledRecord]) -> bytes:
    """Tells the broker which records of the next batch are sampled."""
    payload = b"".join([_ENTRY.pack(*mark) for mark in marks[:TRACED_RECORDS_MAX]])
    return frame(FrameKind.TRACED, payload)


def read_traced(payload: bytes | memoryview) -> list[SampledRecord]:
    """The entries of a TRACED frame; those with a trace or a span of zeros are left out."""
    count, rest = divmod(len(payload), ENTRY_BYTES)
    if rest or not 1 <= count <= TRACED_RECORDS_MAX:
        raise ProtocolError(
            f"A TRACED frame has 1 to {TRACED_RECORDS_MAX} entries of {ENTRY_BYTES} bytes, not "
            f"{len(payload)} bytes."
        )
    marks = [SampledRecord._make(entry) for entry in _ENTRY.iter_unpack(payload)]
    return [mark for mark in marks if any(mark.trace_id) and any(mark.span_id)]
