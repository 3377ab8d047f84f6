"""Frames of the web listener: whole WebSocket frames as a server sends them, and SSE events.

A server's frame is not masked (RFC 6455, 5.1): a byte with FIN and the opcode, the size in 1, 3 or
9 bytes, and the payload. An SSE event is a block of `id:`, `event:` and `data:` lines and an empty
line; what ends a line may not stand in one.
"""

from __future__ import annotations

from struct import Struct

_TEXT, _BINARY = 0x81, 0x82
_SHORT_MAX = 125
_UINT16_MAX = 0xFFFF
_SHORT, _MEDIUM, _LONG = Struct(">BB"), Struct(">BBH"), Struct(">BBQ")


def frame_head(first: int, size: int) -> bytes:
    if size <= _SHORT_MAX:
        return _SHORT.pack(first, size)
    if size <= _UINT16_MAX:
        return _MEDIUM.pack(first, 126, size)
    return _LONG.pack(first, 127, size)


def text_frame(payload: bytes) -> bytes:
    """
    >>> text_frame(b"{}")
    b'\\x81\\x02{}'
    """
    return frame_head(_TEXT, len(payload)) + payload


def binary_frame(payload: bytes) -> bytes:
    return frame_head(_BINARY, len(payload)) + payload


def one_line(data: bytes) -> bytes:
    """JSON on one line. A line end stands between its tokens, never in a string: a space does."""
    if b"\n" in data or b"\r" in data:
        return data.replace(b"\n", b" ").replace(b"\r", b" ")
    return data


def sse_event(data: bytes, event: str = "", id: str = "") -> bytes:
    """An event with JSON data.

    >>> sse_event(b"{}", "gap", "5.1.2")
    b'id: 5.1.2\\nevent: gap\\ndata: {}\\n\\n'
    """
    head = f"id: {id}\n" if id else ""
    if event:
        head += f"event: {event}\n"
    return b"%bdata: %b\n\n" % (head.encode(), one_line(data))
