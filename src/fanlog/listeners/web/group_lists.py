"""Groups and queues as a table: searched, sorted and paged."""

from __future__ import annotations

from fanlog.listeners.web.routes import Route

ROUTES: list[Route] = []
