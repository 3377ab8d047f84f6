"""aiohttp's end of a connection. Bytes that are not HTTP get a problem document like every other
error. There is no traceback in the log, because anybody can send them."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from fanlog.listeners.web.problems import http_problem

logger = logging.getLogger("fanlog.listeners")


class HttpHandler(RequestHandler):
    """Answers with problems."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # Behind the first line is what was sent: it may be a header with a secret.
        why = (message or "").partition("\n")[0].partition(": bytearray")[0].strip().rstrip(".:")
        logger.debug(
            "%s sent something that is not HTTP: %s", request.remote, why or type(exc).__name__
        )
        if request.writer.output_size > 0:
            raise ConnectionError("An answer has begun: the connection is of no use any more.")
        response = http_problem(
            status, f"This is not a request that HTTP allows. {why}.", "bad_http"
        )
        response.headers["Server"] = "fanlog"
        response.force_close()
        return response
