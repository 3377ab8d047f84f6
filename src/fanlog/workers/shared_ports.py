"""The ports of all workers. The core holds each of them with a socket that never listens: so the
choice of port 0 is made once, and nobody takes a port while a worker is started again."""

from __future__ import annotations

import socket

from fanlog.listeners.accepting import Acceptor


class SharedPorts:
    """Ports that are held."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def hold(self, listener: Acceptor) -> None:
        """Takes the port of a listener for its workers; `port` then says which. Raises ConfigError
        if another program has it."""
        family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
        try:
            if listener.port:
                # Sockets that share a port do not clash with each other. One that does not share
                # it clashes with them all, those of another broker among them.
                socket.create_server((listener.host, listener.port), family=family).close()
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._held.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((listener.host, listener.port))
        except (OSError, OverflowError) as fault:
            raise listener.not_open(fault) from fault
        listener.port = sock.getsockname()[1]

    def close(self) -> None:
        for sock in self._held:
            sock.close()
        self._held.clear()
