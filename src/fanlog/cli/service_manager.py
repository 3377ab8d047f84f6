"""Notifies a service manager that the broker is ready, reloads or stops, and that its loop still
runs. systemd names a socket in `NOTIFY_SOCKET`; without it nothing happens."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

logger = logging.getLogger("fanlog")


class ServiceManager:
    """systemd, or nobody."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        given = dict(os.environ) if environment is None else environment
        self._address = given.get("NOTIFY_SOCKET", "")
        self._watchdog_seconds = _watchdog_seconds(given)
        self._watching: asyncio.Task[None] | None = None

    def starting(self) -> None:
        self._tell("STATUS=Recovering the data")

    def ready(self, status: str) -> None:
        """The ports are open. From now on it hears that the loop turns."""
        self._tell(f"READY=1\nSTATUS={status}")
        if self._watchdog_seconds and self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def reloading(self) -> None:
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._tell("STOPPING=1\nSTATUS=Draining")

    async def _watch(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_seconds / 2)

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        # An address that begins with @ is one without a file.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.sendto(state.encode(), address)
        except OSError as fault:
            logger.warning("The service manager could not be notified: %s", fault)
            self._address = ""


def _watchdog_seconds(environment: dict[str, str]) -> float:
    """How often the service manager wants to hear of the loop; 0 if not."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    given = environment.get("WATCHDOG_USEC", "")
    return int(given) / 1e6 if given.isdigit() else 0.0
