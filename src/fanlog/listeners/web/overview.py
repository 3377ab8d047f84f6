"""The broker at a glance: health, rates, and what needs attention."""

from __future__ import annotations

from fanlog.listeners.web.routes import Route

ROUTES: list[Route] = []
