"""A raw connection that speaks RESP byte by byte, so that tests see what is on the wire."""

from __future__ import annotations

import re
import socket
import time
from types import TracebackType

from tests import secured

TIMEOUT_S = 100.0
# What no two servers have in common.
_OWN = (
    (re.compile(rb"\$\d+\r\n\d+\.\d+\.\d+\r\n"), b"<version>\r\n"),
    (re.compile(rb"(\$2\r\nid\r\n):\d+"), rb"\1<id>"),
)


def command(*words: bytes | str) -> bytes:
    """A command as an array of bulk strings."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def push(*words: bytes | str | int | None, mark: bytes = b"*") -> bytes:
    """A message or confirmation as RESP2 has it; with the mark `>` as RESP3 does."""
    out = b"%b%d\r\n" % (mark, len(words))
    for word in words:
        if isinstance(word, int):
            out += b":%d\r\n" % word
        elif word is None:
            out += b"_\r\n" if mark == b">" else b"$-1\r\n"
        else:
            data = word.encode() if isinstance(word, str) else word
            out += b"$%d\r\n%b\r\n" % (len(data), data)
    return out


def masked(data: bytes) -> bytes:
    """Without what is each server's own."""
    for pattern, instead in _OWN:
        data = pattern.sub(instead, data)
    return data


class Wire:
    """`expect` takes exactly these bytes, `tell` sends first; `rest` is all until the end."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = secured.wrap_wire(self.sock, port)
        self._kept = b""

    @property
    def address(self) -> str:
        host, port = self.sock.getsockname()
        return f"{host}:{port}"

    def send(self, *words: bytes | str) -> None:
        self.sock.sendall(command(*words))

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def expect(self, wanted: bytes) -> None:
        got = self.take(len(wanted))
        assert got == wanted, f"{got!r} came instead of {wanted!r}"

    def take(self, size: int) -> bytes:
        while len(self._kept) < size:
            part = self.sock.recv(65536)
            if not part:
                break
            self._kept += part
        taken, self._kept = self._kept[:size], self._kept[size:]
        return taken

    def take_until(self, end: bytes) -> bytes:
        """All up to these bytes, and they."""
        taken = b""
        while not taken.endswith(end):
            part = self.take(1)
            assert part, f"the server closed after {taken[-100:]!r}"
            taken += part
        return taken

    def tell(self, *words: bytes | str, wanted: bytes) -> None:
        self.send(*words)
        self.expect(wanted)

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while part := self.sock.recv(65536):
            self._kept += part
        rest, self._kept = self._kept, b""
        return rest

    def quiet(self, seconds: float = 0.05) -> bytes:
        """What comes within a moment; nothing, if nothing does."""
        deadline = time.monotonic() + seconds
        self.sock.settimeout(seconds)
        try:
            while time.monotonic() < deadline:
                part = self.sock.recv(65536)
                if not part:
                    break
                self._kept += part
        except TimeoutError:
            pass
        finally:
            self.sock.settimeout(TIMEOUT_S)
        rest, self._kept = self._kept, b""
        return rest

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
