"""Spark queries that commit their progress, and runs of pipelines."""

from __future__ import annotations

from fanlog.listeners.web.routes import Route

ROUTES: list[Route] = []
