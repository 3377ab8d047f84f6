"""Reports the progress of a pipeline run to the broker, so that its dashboard can show the last
runs. Law: a run does not depend on its reports. If the broker does not accept a report, one line
says so."""

from __future__ import annotations

import datetime as dt
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fanlog.cli.session import with_client
from fanlog.cli.terminal import say_warning
from fanlog.format.frames import FrameKind
from fanlog.format.pipelines import (
    NAME_CHARACTERS_MAX,
    OPTIONS_MAX,
    STREAMS_MAX,
    TEXT_CHARACTERS_MAX,
    PipelineRun,
    PipelineStream,
    RunState,
)
from fanlog.spark.pipelines import GROUP, group_of

if TYPE_CHECKING:
    from fanlog.cli.pipeline_display import Seen, Watching
    from fanlog.client.aio import Client
    from fanlog.spark.pipelines.runs import RunningPipeline

_EVERY_SECONDS = 15.0


class RunReports:
    """Reports of one run."""

    def __init__(self, url: str, running: RunningPipeline, watching: Watching) -> None:
        self._url = url
        self._running = running
        self._watching = watching
        self._next_at = time.monotonic() + _EVERY_SECONDS
        self._refused = False

    def send_now_and_then(self) -> None:
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _EVERY_SECONDS
            self.send()

    def end(self, *, why: str = "", summary: str = "") -> None:
        """The last report, when the run is over."""
        run = self._running.run
        ended: RunState = "stopped" if run.stopped else "failed"
        self.send("done" if run.exit_code == 0 else ended, why=why, summary=summary)

    def send(self, state: RunState = "running", *, why: str = "", summary: str = "") -> None:
        if self._refused:
            return
        try:
            report = self._report(state, why, summary)

            async def work(client: Client) -> None:
                await client.ask(FrameKind.PIPELINE_RUN, report)

            with_client(self._url, work)
        except Exception as fault:  # noqa: BLE001 - telling is one thing, and the run another
            self._refused = True
            with suppress(OSError):  # nobody reads it any more
                say_warning(f"The broker's dashboard can't show this run: {fault}")

    def _report(self, state: RunState, why: str, summary: str) -> PipelineRun:
        run, watching = self._running.run, self._watching
        streams = watching.look()
        options = dict(list(run.options.items())[:OPTIONS_MAX])
        return PipelineRun(
            name=(run.options.get(GROUP) or group_of(self._running.state))[:NAME_CHARACTERS_MAX],
            pipeline=run.pipeline[:NAME_CHARACTERS_MAX],
            started_us=_us(run.started),
            ended_us=0 if state == "running" else _us(run.ended or dt.datetime.now(dt.UTC)),
            state=state,
            host=socket.gethostname()[:NAME_CHARACTERS_MAX],
            pid=run.pid,
            exit_code=run.exit_code,
            options={
                name[:NAME_CHARACTERS_MAX]: value[:TEXT_CHARACTERS_MAX]
                for name, value in options.items()
            },
            streams=tuple(map(_stream, streams[:STREAMS_MAX])),
            records=watching.records if streams else None,
            why=why[:TEXT_CHARACTERS_MAX],
            summary=summary[:TEXT_CHARACTERS_MAX],
            report=run.options.get("report", "")[:TEXT_CHARACTERS_MAX],
        )


def _stream(seen: Seen) -> PipelineStream:
    return PipelineStream(
        name=seen.name[:NAME_CHARACTERS_MAX],
        batch=max(0, seen.batch),
        records=max(0, seen.records or 0),
        per_second=max(0.0, seen.per_second),
        lag=seen.lag,
    )


def _us(time: dt.datetime) -> int:
    return round(time.timestamp() * 1e6)
