"""Messages for people: the newest or the oldest that match, within limits."""

from __future__ import annotations

from fanlog.listeners.web.routes import Route

ROUTES: list[Route] = []
