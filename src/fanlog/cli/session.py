"""What client commands share: the broker's address, and a connection for as long as they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from fanlog.cli.credentials import find_credentials, refuse_secret
from fanlog.cli.loops import new_event_loop
from fanlog.client.aio import Client, connect
from fanlog.config import DEFAULT_HOST, NATIVE_PORT

T = TypeVar("T")

DEFAULT_URL = f"fanlog://{DEFAULT_HOST}:{NATIVE_PORT}"

# What a person needs to know is raised, and said once; log lines would say it again.
_SILENCE = logging.NullHandler()

Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="Address of the broker.",
        metavar="URL",
        envvar="FANLOG_URL",
        callback=refuse_secret,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def with_client(
    url: str, work: Callable[[Client], Awaitable[T]], *, reconnect: bool = False, **options: Any
) -> T:
    """Runs `work` with a connection. Only what may last long comes back after a lost one."""
    logging.getLogger().addHandler(_SILENCE)  # which is there once, however often it is added

    options = find_credentials(url) | options

    async def connected() -> T:
        async with connect(url, name="fanlog-cli", reconnect=reconnect, **options) as client:
            return await work(client)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(connected())
