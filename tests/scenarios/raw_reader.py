"""Subscribers on raw sockets: thousands fit in one process, and they see the very bytes."""

from __future__ import annotations

import socket

from fanlog.client.core.handshake import hello
from fanlog.format.frames import PREFIX, PREFIX_BYTES, FrameKind, message_frame
from fanlog.format.header import KIND_BATCH
from fanlog.format.messages import Subscribe

# For the broker, whose readers here say nothing while they wait, however long a machine takes.
PATIENT = {"FANLOG_LISTENER_IDLE_TIMEOUT_SECONDS": "3600"}


def read_frame(sock: socket.socket) -> tuple[int, bytes]:
    prefix = _exactly(sock, PREFIX_BYTES)
    length, kind = PREFIX.unpack(prefix)
    return kind, prefix + _exactly(sock, length - PREFIX_BYTES)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


def subscribe(port: int, topic: str, *, window_bytes: int = 0) -> socket.socket:
    """A connection that has subscribed, and whose next bytes are its first batch."""
    sock = socket.create_connection(("127.0.0.1", port))
    wanted = Subscribe(target=topic, window_bytes=window_bytes)
    sock.sendall(hello("raw") + message_frame(FrameKind.SUBSCRIBE, wanted, request=1, aux=1))
    kinds = [read_frame(sock)[0] for _ in range(2)]
    assert kinds == [FrameKind.WELCOME, FrameKind.OK], kinds
    return sock


def skip_marker(sock: socket.socket) -> bytes:
    """The first batch, after the frame that says whose it is."""
    kind, _ = read_frame(sock)
    assert kind == FrameKind.FEED
    kind, frame = read_frame(sock)
    assert kind == KIND_BATCH
    return frame
