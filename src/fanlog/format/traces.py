"""Spans of the broker as peers ask for them, over the native protocol and over HTTP."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Attributes = dict[str, str | int | float | bool]


class ListTraces(msgspec.Struct, frozen=True):
    """The last spans, the newest first; of one trace, or about one topic."""

    trace_id: str = ""
    topic: str = ""
    count: int = 100


class SpanInfo(msgspec.Struct, frozen=True):
    """A span. The times are microseconds since 1970."""

    trace_id: Annotated[str, Meta(description="32 hexadecimal digits.")]
    span_id: Annotated[str, Meta(description="16 hexadecimal digits.")]
    parent_id: Annotated[str, Meta(description="The span above it. Empty: the trace begins here.")]
    name: Annotated[str, Meta(description="What was done, and the topic: `append orders`.")]
    kind: str
    start_us: int
    end_us: int
    attributes: Attributes
    error: Annotated[str, Meta(description="What went wrong. Empty: nothing did.")] = ""


class TracesPage(msgspec.Struct, frozen=True):
    """`kept` of the spans are in memory; `left_out` sampled messages were not followed."""

    spans: tuple[SpanInfo, ...]
    kept: int = 0
    left_out: int = 0
