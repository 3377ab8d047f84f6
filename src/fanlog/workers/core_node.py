"""The core of a broker with workers: a broker whose listeners get their connections from the
workers, over a Unix socket."""

from __future__ import annotations

import secrets
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from fanlog.config import Config
from fanlog.format.introduction import SECRET_BYTES, Introduction
from fanlog.listeners.accepting import Acceptor
from fanlog.listeners.server import NativeListener
from fanlog.listeners.workers_socket import WorkersSocket
from fanlog.node import Node
from fanlog.workers.shared_ports import SharedPorts
from fanlog.workers.socket_reach import choose_socket

if TYPE_CHECKING:
    from fanlog.listeners.web.server import WebListener


class CoreNode(Node):
    """`listen` and `listen_web` hold ports for the workers; `open_socket` lets the workers in."""

    def __init__(self, folder: str | None, config: Config) -> None:
        super().__init__(folder, config)
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.ports = SharedPorts()
        self._path, self._to_remove = choose_socket(None if folder is None else Path(folder))
        self._socket: WorkersSocket | None = None
        self._native: NativeListener | None = None
        self._web: WebListener | None = None

    @property
    def socket_path(self) -> str:
        """Where workers connect."""
        return str(self._path)

    def monotonic_us(self) -> int:
        """The clock for durations, which stops while this process stands still."""
        return self._runtime.monotonic_us()

    def prepare_listener(self, listener: Acceptor) -> None:
        super().prepare_listener(listener)
        self.ports.hold(listener)
        listener.is_handed_in = True

    def listen(self) -> NativeListener:
        self._native = super().listen()
        return self._native

    async def listen_web(self) -> WebListener:
        self._web = await super().listen_web()
        return self._web

    def open_socket(self) -> None:
        """Lets workers in, from now on."""
        self._socket = WorkersSocket(self._path, self.secret, self._hand_in)
        self._socket.open()

    def _hand_in(self, sock: socket.socket, introduction: Introduction) -> None:
        listener = self._web if introduction.kind == "web" else self._native
        if listener is None or self.core.draining:
            sock.close()
        elif introduction.kind == "worker":
            assert self._native is not None
            self._native.hand_in_worker(sock, introduction.address)
        else:
            listener.hand_in(sock, introduction.address)

    async def stop(self, drain_seconds: float | None = None) -> None:
        if self._socket is not None:
            self._socket.close()
        try:
            await super().stop(drain_seconds)
        finally:
            self.ports.close()
            if self._to_remove is not None:
                shutil.rmtree(self._to_remove, ignore_errors=True)
