"""Runs of pipelines, as their runner reports them to the broker, so that others can see them. The
frame PIPELINE_RUN carries one, and the ledger `_fanlog.pipelines` keeps the last ones.

A run has the name of its state: `pipeline.archive` is also the group that shows its lag. A client
that may use that group may report its runs. A later report of the same run replaces the one before.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

NAME_CHARACTERS_MAX = 255
OPTIONS_MAX = 50
STREAMS_MAX = 50
TEXT_CHARACTERS_MAX = 2000
REPORT_BYTES_MAX = 64 * 1024

_PipelineText = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
_PipelineName = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]

RunState = Literal["running", "done", "stopped", "failed"]


class PipelineStream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of a run: its last batch, the records of all batches, and its lag, None if
    unknown."""

    name: _PipelineName
    batch: Annotated[int, Meta(ge=0)] = 0
    records: Annotated[int, Meta(ge=0)] = 0
    per_second: Annotated[float, Meta(ge=0)] = 0.0
    lag: Annotated[int, Meta(ge=0)] | None = None


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A reported run. Times are microseconds since 1970. `why` is the error, `summary` the result,
    and `report` the path of a report on the host that ran it."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    pipeline: _PipelineName
    started_us: Annotated[int, Meta(ge=0, le=1 << 62)]
    state: RunState
    ended_us: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    host: _PipelineName = ""
    pid: int = 0
    exit_code: int | None = None
    options: Annotated[dict[_PipelineName, _PipelineText], Meta(max_length=OPTIONS_MAX)] = {}
    streams: Annotated[tuple[PipelineStream, ...], Meta(max_length=STREAMS_MAX)] = ()
    records: Annotated[int, Meta(ge=0)] | None = None
    why: _PipelineText = ""
    summary: _PipelineText = ""
    report: _PipelineText = ""
