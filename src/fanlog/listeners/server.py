"""The native listener: `fanlog://` on one address."""

from __future__ import annotations

import socket
from typing import ClassVar

from fanlog.errors import FanlogError, ProtocolError, TooManyConnectionsError
from fanlog.format.frames import FrameKind, message_frame
from fanlog.format.messages import ErrorAnswer
from fanlog.listeners.native import NativeSession
from fanlog.listeners.socket_connection import SocketConnection
from fanlog.listeners.tcp import TcpListener


class NativeListener(TcpListener[NativeSession]):
    """`fanlog://` on one address."""

    protocol: ClassVar[str] = "native"
    section: ClassVar[str] = "listener"
    port_flag: ClassVar[str] = "--port"
    host_option: ClassVar[str] = "--host"

    def admit(self, sock: socket.socket, peer: str) -> tuple[SocketConnection, NativeSession]:
        connection = SocketConnection(sock, peer, self)
        return connection, NativeSession(self.broker, connection, self.options)

    def hand_in_worker(self, sock: socket.socket, name: str) -> None:
        """Takes a worker's own connection, over which it asks for its clients."""
        connection = SocketConnection(sock, name, self)
        session = NativeSession(self.broker, connection, self.options, trusted=True)
        self.open_connection(connection, session)

    def refusal(self, error: TooManyConnectionsError) -> bytes:
        return message_frame(FrameKind.ERROR, ErrorAnswer(error.code, str(error)))

    def overdue(
        self, connection: SocketConnection, session: NativeSession, now: float
    ) -> FanlogError | None:
        """Evicts peers that never said hello, stopped in the middle of a frame, or went
        silent."""
        options = self.options
        silent = now - connection.heard_at
        if not session.greeted():
            if now - connection.since > options.hello_timeout_seconds:
                return ProtocolError(
                    f"No hello within {options.hello_timeout_seconds} s "
                    "(listener.hello_timeout_seconds): a client must send one first."
                )
        elif connection.paused:
            return None  # it is we who do not listen
        elif self.drags_on(connection, session.half_frame(), now, options.frame_timeout_seconds):
            return ProtocolError(
                f"A frame was begun and not ended within {options.frame_timeout_seconds} s "
                "(listener.frame_timeout_seconds): the network, or the client, is too slow."
            )
        elif silent > options.idle_timeout_seconds:
            return ProtocolError(
                f"Nothing was heard for {options.idle_timeout_seconds} s "
                "(listener.idle_timeout_seconds): a client must ping."
            )
        return None
