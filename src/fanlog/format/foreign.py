"""Other protocols that arrive at a wrong port: which one it is by its first bytes, and an answer
that its own client shows to its user.

Law: a guess. It only makes an error clearer; it never decides whether a connection is accepted.
"""

from __future__ import annotations

from typing import Literal

Protocol = Literal["HTTP", "Redis", "TLS", "NATS", "SSH"]

_HTTP = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"HTTP/")
_REDIS_WORDS = (b"PING", b"AUTH ", b"HELLO ", b"INFO\r", b"SUBSCRIBE ", b"PUBLISH ")
_REDIS_MARKS = (b"*", b"+", b"-", b"$", b":")
_NATS = (b"INFO {", b"CONNECT {", b"-ERR '")
# A client asks some things of its own before what its user asks, and ignores their errors.
_REDIS_ANSWERS = 4
_TLS_HANDSHAKE, _TLS_ALERT = b"\x16\x03", b"\x15\x03"


def maybe_protocol(data: bytes) -> Protocol | None:
    """Which protocol begins, or answers, like this."""
    if data.startswith(_HTTP):
        return "HTTP"
    if data.startswith(_NATS):
        return "NATS"
    if data.startswith(b"SSH-"):
        return "SSH"
    if data.startswith((_TLS_HANDSHAKE, _TLS_ALERT)):
        return "TLS"
    if data.startswith(_REDIS_WORDS) or (
        data.startswith(_REDIS_MARKS) and data[1:2].isalnum() and data.isascii()
    ):
        return "Redis"
    return None


def maybe_answer(data: bytes, sentence: str) -> bytes | None:
    """The sentence, as a client that begins like this can show it."""
    match maybe_protocol(data):
        case "HTTP":
            body = f"{sentence}\n".encode()
            return (
                b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
                b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        case "Redis":
            return f"-ERR {sentence}\r\n".encode() * _REDIS_ANSWERS
        case "NATS":
            return f"-ERR '{sentence}'\r\n".encode()
        case _:
            return None
