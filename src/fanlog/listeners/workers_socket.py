"""The Unix socket of a broker with workers. A worker introduces each connection, and the listener
that it is for takes it over, as if it had accepted it itself.

Law: nobody but the workers of this broker gets past the introduction. The socket's file is for its
user alone, the kernel says who connects, and the introduction has a secret of this start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from fanlog.errors import ConfigError, FanlogError, FormatError
from fanlog.format.introduction import (
    INTRODUCTION_HEAD,
    Introduction,
    introduction_rest,
    read_introduction,
)

logger = logging.getLogger("fanlog.listeners")

_BACKLOG = 4096
_ACCEPTS_A_TURN = 128
_PAUSE_SECONDS = 0.2
# A worker introduces itself with its first bytes.
_PATIENCE_SECONDS = 10.0
# Process, user and group of a peer, as Linux has them.
_CREDENTIALS = struct.Struct("=iII")
# The size of `sun_path`, with the zero at its end.
PATH_BYTES_MAX = 107

HandIn = Callable[[socket.socket, Introduction], None]


class WorkersSocket:
    """`hand_in` gets a connection and its introduction, and raises OSError if it is gone."""

    def __init__(self, path: Path, secret: bytes, hand_in: HandIn) -> None:
        self.path = path
        self._secret = secret
        self._hand_in = hand_in
        self._sock: socket.socket | None = None
        self._strangers: dict[int, _Stranger] = {}
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Listens. A socket that a killed broker has left is replaced: the data folder is ours."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)
            # On Linux the file gets the mode of its socket, so it is never open to others.
            os.fchmod(sock.fileno(), 0o600)
            sock.bind(str(self.path))
            self.path.chmod(0o600)
            sock.listen(_BACKLOG)
        except OSError as fault:
            sock.close()
            raise ConfigError(
                f"Can't make the socket of the workers, {self.path}: {fault.strerror}. Choose "
                "another data folder with --data, or run without --workers."
            ) from fault
        sock.setblocking(False)
        self._sock = sock
        self._loop.add_reader(sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if self._sock is None:
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                logger.warning("no worker can connect for now: %s", fault)
                self._loop.remove_reader(self._sock.fileno())
                self._loop.call_later(_PAUSE_SECONDS, self._accept_again)
                return
            sock.setblocking(False)
            if _is_our_user(sock):
                _Stranger(self, sock)
            else:
                logger.warning("a process of another user was refused by %s", self.path)
                sock.close()

    def _accept_again(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    # Strangers, until they are introduced

    def met(self, stranger: _Stranger) -> None:
        self._strangers[stranger.fd] = stranger
        self._loop.add_reader(stranger.fd, self._read, stranger)
        stranger.timer = self._loop.call_later(
            _PATIENCE_SECONDS, self._turn_away, stranger, FormatError("It said nothing.")
        )

    def _read(self, stranger: _Stranger) -> None:
        try:
            introduction = stranger.read(self._secret)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, FanlogError) as fault:
            self._turn_away(stranger, fault)
            return
        if introduction is None:
            return
        self._forget(stranger)
        try:
            self._hand_in(stranger.sock, introduction)
        except OSError as fault:
            logger.debug("%s: gone at once: %s", introduction.address, fault)
            stranger.sock.close()

    def _turn_away(self, stranger: _Stranger, fault: Exception) -> None:
        logger.warning("a connection to %s is cut: %s", self.path, fault)
        self._forget(stranger)
        stranger.sock.close()

    def _forget(self, stranger: _Stranger) -> None:
        self._loop.remove_reader(stranger.fd)
        self._strangers.pop(stranger.fd, None)
        if stranger.timer is not None:
            stranger.timer.cancel()

    def close(self) -> None:
        """Accepts nothing more, and removes the file."""
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None
        for stranger in list(self._strangers.values()):
            self._forget(stranger)
            stranger.sock.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


class _Stranger:
    """A connection that has not been introduced. Not a byte behind the introduction is read."""

    __slots__ = ("_kept", "_rest", "fd", "sock", "timer")

    def __init__(self, entrance: WorkersSocket, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.timer: asyncio.TimerHandle | None = None
        self._kept = b""
        self._rest = -1
        entrance.met(self)

    def read(self, secret: bytes) -> Introduction | None:
        """The introduction, once all of it is here. Raises FanlogError or OSError."""
        if self._rest < 0:
            if not self._fill(INTRODUCTION_HEAD.size):
                return None
            self._rest = introduction_rest(self._kept, secret)
            self._kept = b""
        return read_introduction(self._kept) if self._fill(self._rest) else None

    def _fill(self, size: int) -> bool:
        """Whether `size` bytes are here."""
        if len(self._kept) < size:
            got = self.sock.recv(size - len(self._kept))
            if not got:
                raise FormatError("It ended in its introduction.")
            self._kept += got
        return len(self._kept) == size


def _is_our_user(sock: socket.socket) -> bool:
    """Whether the other end is a process of the broker's user, or of root."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return user in (os.getuid(), 0)
