"""The machine and the versions a benchmark ran on.

Law: a figure without its environment is a rumour, so every report carries one of these. Nothing
here starts a process except to ask a server program for its version.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import time
from pathlib import Path

import msgspec

from fanlog.release import VERSION

VERSION_TIMEOUT_S = 60.0
OPEN_FILES_WANTED = 8192
# Packages with relevant versions, and their display names.
PACKAGES = {
    "redis": "redis-py",
    "nats-py": "nats-py",
    "uvloop": "uvloop",
    "pyspark": "pyspark",
    "aiohttp": "aiohttp",
    "websockets": "websockets",
    "python-socketio": "python-socketio",
}


class Environment(msgspec.Struct, frozen=True):
    """Where and when a benchmark ran; part of every report."""

    when: str
    cpu: str
    cores: int
    pinned: bool
    kernel: str
    python: str
    filesystem: str
    load_average: float
    versions: dict[str, str]


def describe_environment(
    *, pinned: bool, directory: Path, programs: dict[str, Path]
) -> Environment:
    """Describe this machine, the data directory's file system and the programs under test."""
    versions = {name: program_version(path) for name, path in programs.items()}
    versions["fanlog"] = VERSION
    for package, name in PACKAGES.items():
        try:
            versions[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Environment(
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        pinned=pinned,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        filesystem=filesystem_of(directory),
        load_average=round(os.getloadavg()[0], 2),
        versions=versions,
    )


def cpu_model() -> str:
    """The processor's name, or its architecture if the kernel does not name it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def filesystem_of(directory: Path) -> str:
    """The type of the file system that holds `directory`: an fsync on tmpfs proves nothing."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    best_point, best_type = "", "unknown"
    resolved = directory.resolve()
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        if resolved.is_relative_to(point) and len(point) >= len(best_point):
            best_point, best_type = point, kind
    return best_type


def program_version(program: Path) -> str:
    """The first version number that `program --version` prints."""
    try:
        done = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found.group(0) if found else "unknown"


def raise_open_files_limit(files: int = OPEN_FILES_WANTED) -> None:
    """A thousand subscribers need as many sockets, here and in the servers, which inherit this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
