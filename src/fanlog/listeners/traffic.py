"""How many bytes went over a connection, as the kernel has counted them: nobody counts them here,
so that sending pays nothing for it."""

from __future__ import annotations

import socket
import sys
from struct import Struct, error

# Of Linux's `struct tcp_info`: tcpi_bytes_acked and tcpi_bytes_received.
_COUNTS = Struct("=QQ")
_COUNTS_AT = 120
_TCP_INFO_BYTES = _COUNTS_AT + _COUNTS.size


def count_traffic(sock: socket.socket) -> tuple[int, int] | None:
    """The bytes received and sent; None where the system does not count them."""
    if sys.platform != "linux":
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        sent, received = _COUNTS.unpack_from(info, _COUNTS_AT)
    except (OSError, error):
        return None
    return received, sent


def describe_traffic(sock: socket.socket) -> str:
    """`; 120 bytes received, 4096 sent`; nothing where the system does not count them."""
    counted = count_traffic(sock)
    return "" if counted is None else f"; {counted[0]} bytes received, {counted[1]} sent"
