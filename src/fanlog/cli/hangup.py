"""The meaning of SIGHUP. Service managers send it to make a service read its settings again, and a
terminal that closes sends it to its programs. So a broker reloads, unless the terminal that started
it is gone: then it drains. With `nohup` it keeps running in any case."""

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
