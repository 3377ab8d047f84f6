"""What SIGHUP means. Services are told to read their settings again with it; and a terminal sends
it to what runs in it when it is closed. So a broker reloads, unless the terminal that it was
started from is gone: then it drains. With `nohup` it stays, whatever becomes of the terminal."""

from __future__ import annotations

import os
import signal


class Terminal:
    """The terminal that this process was started from, if any."""

    def __init__(self) -> None:
        # `nohup` has the signal ignored.
        self._stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._was_there = _is_there()

    def is_gone(self) -> bool:
        return self._was_there and not self._stays and not _is_there()


def _is_there() -> bool:
    """Whether this process has a controlling terminal. The kernel takes it away before it sends the
    signal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
