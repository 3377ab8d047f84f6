"""Topics as a table: searched, sorted and paged, however many there are."""

from __future__ import annotations

from fanlog.listeners.web.routes import Route

ROUTES: list[Route] = []
