"""The HTTP application: all routes, and the steps that every request passes."""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from fanlog.errors import FanlogError
from fanlog.listeners.faults import OUR_FAULT
from fanlog.listeners.web import (
    account_lists,
    accounts,
    audit_log,
    clients,
    cluster,
    dead_letters,
    explorer,
    group_details,
    group_lists,
    group_stream,
    groups,
    logins,
    messages,
    metric_history,
    metrics,
    oidc_routes,
    overview,
    pipelines,
    publishing,
    queue_details,
    queues,
    requests,
    resumable,
    rooms,
    schedules,
    server_routes,
    settings,
    status,
    streams,
    task_routes,
    topic_details,
    topic_lists,
    topics,
    tracing,
    transactions,
)
from fanlog.listeners.web.compression import compress
from fanlog.listeners.web.dashboard_files import add_dashboard
from fanlog.listeners.web.entrance import authenticate
from fanlog.listeners.web.files import add_files
from fanlog.listeners.web.origins import cross_origin
from fanlog.listeners.web.pages import add_pages
from fanlog.listeners.web.problems import http_problem, problem_response
from fanlog.listeners.web.routes import Route, adapted
from fanlog.telemetry.callers import maybe_who

if TYPE_CHECKING:
    from fanlog.listeners.web.listener_port import WebPort

logger = logging.getLogger("fanlog.listeners")

ROUTES: list[Route] = [
    *topics.ROUTES,
    *topic_lists.ROUTES,
    *topic_details.ROUTES,
    *messages.ROUTES,
    *explorer.ROUTES,
    *publishing.ROUTES,
    *streams.ROUTES,
    *server_routes.ROUTES,
    *clients.ROUTES,
    *rooms.ROUTES,
    *groups.ROUTES,
    *group_lists.ROUTES,
    *group_details.ROUTES,
    *group_stream.ROUTES,
    *queues.ROUTES,
    *queue_details.ROUTES,
    *dead_letters.ROUTES,
    *task_routes.ROUTES,
    *transactions.ROUTES,
    *schedules.ROUTES,
    *pipelines.ROUTES,
    *requests.ROUTES,
    *resumable.ROUTES,
    *overview.ROUTES,
    *status.ROUTES,
    *cluster.ROUTES,
    *logins.ROUTES,
    *accounts.ROUTES,
    *account_lists.ROUTES,
    *oidc_routes.ROUTES,
    *settings.ROUTES,
    *audit_log.ROUTES,
    *metrics.ROUTES,
    *metric_history.ROUTES,
    *tracing.ROUTES,
]


def make_app(listener: WebPort) -> web.Application:
    """The application, for one listener."""
    app = web.Application(
        client_max_size=listener.options.body_bytes_max,
        middlewares=[
            _count(listener),
            *listener.middlewares,
            compress,
            cross_origin(listener.origins),
            _explain,
            authenticate(listener),
        ],
    )
    app.on_response_prepare.append(_harden)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, adapted(route, listener))
        is_json = route.answer is not None and route.answer_type == "application/json"
        if route.method == "GET" and is_json:
            app.router.add_route("HEAD", route.path, adapted(route, listener))
    folder = listener.options.folder
    # An edge has nothing of its own to show; the dashboard is the broker's.
    dashboard = listener.bus.is_broker
    add_pages(
        app,
        ROUTES,
        front_page=not folder,
        dashboard=dashboard,
        guarded=listener.entrance.guarded,
    )
    if dashboard:
        add_dashboard(app)
    add_files(app, folder)
    return app


async def _harden(request: web.Request, response: web.StreamResponse) -> None:
    """Hides the library and its version, and keeps browsers from showing a message as a page."""
    response.headers["Server"] = "fanlog"
    if request.path.startswith("/v1/"):
        response.headers.setdefault("X-Content-Type-Options", "nosniff")


def _count(listener: WebPort):
    """Notifies the listener when a request is complete, and when it is answered."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        listener.begun(request)
        begun_ns = perf_counter_ns()
        try:
            return await handler(request)
        finally:
            listener.ended(request)
            took_ns = perf_counter_ns() - begun_ns
            slow = listener.core.metrics.slow
            if took_ns > slow.request_ns and not _waits(request):
                slow.request(took_ns, _route_of(request), maybe_who(), waited=True)

    return count


# They wait for messages, for an answer of somebody else, or for who takes a large file.
_WAITING = ("stream", "/v1/ws", "/v1/request/", "/take", "/v1/streams/", "/export")


def _waits(request: web.Request) -> bool:
    path = request.path
    return "wait_seconds" in request.query or any(part in path for part in _WAITING)


def _route_of(request: web.Request) -> str:
    """The route, without the client's values."""
    resource = request.match_info.route.resource
    return f"{request.method} {'an unknown path' if resource is None else resource.canonical}"


@web.middleware
async def _explain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Makes a problem of every error."""
    try:
        return await handler(request)
    except FanlogError as error:
        return problem_response(error)
    except web.HTTPRequestEntityTooLarge:
        detail = "The body is larger than web.body_bytes_max, or too large for a login."
        return http_problem(413, detail, "body_too_large")
    except web.HTTPNotFound:
        return http_problem(
            404,
            f"There is nothing at {request.path}. See /v1/reference or /v1/openapi.json.",
            "no_such_path",
        )
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return http_problem(
            405,
            f"{request.method} is not possible at {request.path}; use {allowed}.",
            "wrong_method",
            Allow=allowed,
        )
    except web.HTTPException:
        raise
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        return problem_response(FanlogError(OUR_FAULT))
