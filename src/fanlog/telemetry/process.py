"""What the operating system knows of this process and of the disk that it writes to.
`measure_process` may wait for the disk, so it is called in a thread."""

from __future__ import annotations

import os
import sys
import time

import msgspec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STARTED = time.time()


class ProcessMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """0 where the system does not say. `disk_*` are those of the data folder; both are 0 without
    one."""

    started: float
    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    threads: int
    open_files: int
    open_files_max: int
    disk_free_bytes: int
    disk_total_bytes: int


def measure_process(folder: str | None) -> ProcessMetrics:
    """The present figures of this process."""
    virtual, resident = _memory()
    free, total = _disk(folder)
    return ProcessMetrics(
        started=_STARTED,
        cpu_seconds=_cpu_seconds(),
        resident_bytes=resident,
        virtual_bytes=virtual,
        threads=_threads(),
        open_files=_count("/proc/self/fd") or _count("/dev/fd"),
        open_files_max=_files_max(),
        disk_free_bytes=free,
        disk_total_bytes=total,
    )


def measure_usage() -> tuple[float, int]:
    """CPU seconds and resident bytes. It takes microseconds, and waits for nothing."""
    return _cpu_seconds(), _memory()[1]


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _memory() -> tuple[int, int]:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            virtual, resident = file.read().split()[:2]
    except (OSError, ValueError):
        return 0, 0
    return int(virtual) * _PAGE_BYTES, int(resident) * _PAGE_BYTES


def _threads() -> int:
    return _count("/proc/self/task")


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def _files_max() -> int:
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 - there is none on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _disk(folder: str | None) -> tuple[int, int]:
    """What may still be written, without what is kept for root."""
    if folder is None or sys.platform == "win32":
        return 0, 0
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
