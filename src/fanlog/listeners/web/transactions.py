"""Open transactions."""

from __future__ import annotations

from fanlog.listeners.web.routes import Route

ROUTES: list[Route] = []
