"""Folders for tests that fill and empty hundreds of them: a busy disk would take minutes for it.

Law: only for tests in which at most the process ends, which no sync matters to, or which say
themselves what a power failure takes. To sync a file that is not open is a fault here too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
# A test needs a few of these megabytes. A container may have been given no more than 64.
MEMORY_BYTES_MIN = 512 << 20


@contextmanager
def quick_folder() -> Iterator[Path]:
    """In memory where there is room, and with syncs that nobody waits for where there is none."""
    real = os.fsync, os.fdatasync
    with tempfile.TemporaryDirectory(dir=_maybe_memory()) as name:
        os.fsync = os.fdatasync = _check_open
        try:
            yield Path(name)
        finally:
            os.fsync, os.fdatasync = real


def _maybe_memory() -> Path | None:
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN else None


def _check_open(fd: int) -> None:
    os.fstat(fd)
