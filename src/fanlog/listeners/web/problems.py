"""Errors as problem details (RFC 9457), with the codes of the error tree."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from fanlog import errors

CONTENT_TYPE = "application/problem+json"

# The nearest class above an error decides.
STATUS: dict[type[errors.FanlogError], int] = {
    errors.FanlogError: 500,
    errors.FormatError: 400,
    errors.RequestError: 400,
    errors.UnauthenticatedError: 401,
    errors.TopicNotFoundError: 404,
    errors.PartitionNotFoundError: 404,
    errors.GroupNotFoundError: 404,
    errors.AccountNotFoundError: 404,
    errors.AccountExistsError: 409,
    errors.TransactionNotFoundError: 404,
    errors.TopicExistsError: 409,
    errors.TopicDeletedError: 409,
    errors.OutOfSequenceError: 409,
    errors.FencedError: 409,
    errors.ForbiddenError: 403,
    errors.GroupActiveError: 409,
    errors.LeaseLostError: 409,
    errors.KeyReusedError: 422,
    errors.NotSupportedError: 501,
    errors.OffsetOutOfRangeError: 416,
    errors.MessageTooLargeError: 413,
    errors.DeadLetterNotFoundError: 404,
    errors.TaskNotFoundError: 404,
    errors.ScheduleNotFoundError: 404,
    errors.NoRespondersError: 503,
    errors.RequestFailedError: 502,
    errors.StreamEndedError: 409,
    errors.StreamGoneError: 410,
    errors.LimitError: 429,
    errors.OverloadedError: 503,
    errors.TooManyConnectionsError: 503,
    errors.ConnectionQuotaError: 429,
    errors.QuotaExceededError: 507,
    errors.StorageError: 503,
    errors.DiskFullError: 507,
    errors.UnavailableError: 503,
    errors.LinkError: 503,
    errors.RequestTimeoutError: 504,
    errors.MessagesLostError: 410,
    errors.ConfigError: 409,
    errors.UnsupportedSystemError: 501,
}


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused, and what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str


def status_of(error: errors.FanlogError) -> int:
    """The HTTP status for an error."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def problem_of(error: errors.FanlogError) -> Problem:
    status = status_of(error)
    return Problem(
        type=f"urn:fanlog:error:{error.code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=str(error),
        code=error.code,
    )


def answer_problem(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=problem.status,
        body=msgspec.json.encode(problem),
        content_type=CONTENT_TYPE,
        headers=headers,
    )


def problem_response(error: errors.FanlogError) -> web.Response:
    return answer_problem(problem_of(error), _headers(error))


def _headers(error: errors.FanlogError) -> dict[str, str]:
    """What tells a program without reading the text what to do."""
    if isinstance(error, errors.UnauthenticatedError):
        return {"WWW-Authenticate": 'Bearer realm="fanlog"', "Cache-Control": "no-store"}
    if isinstance(error, errors.RateLimitedError):
        # In whole seconds, and never 0: that would mean at once.
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_seconds)))}
    return {}


def http_problem(status: int, detail: str, code: str, **headers: Any) -> web.Response:
    """A problem of HTTP itself, such as a path that does not exist."""
    problem = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
    )
    return answer_problem(problem, headers or None)
