"""The event loop of every command: uvloop's where there is one, and asyncio's own elsewhere.
uvloop is not for Windows; everything works without it, only slower."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:
    uvloop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
