"""Reports of pipeline runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.pipelines import PipelineRun
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def report(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    run = decode(PipelineRun, payload)
    session.permit.ask(Verb.GROUP, run.name)
    session.broker.pipelines.report(run)
    session.answer_durably(request)


HANDLERS: dict[FrameKind, NativeHandler] = {FrameKind.PIPELINE_RUN: report}
