"""A process tree with a network, mounts and process ids of its own. When its first process ends,
the kernel ends the rest, and nothing of it is left: no interface, rule, mount or process."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

# What it needs, and the package of Debian that has it.
PROGRAMS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
}
_INSIDE = "CHAOS_IS_ISOLATED"
_PR_SET_PDEATHSIG = 1
_NAMESPACES = "/run/netns"


def why_not() -> str:
    """Why there can be no namespaces here; empty if there can."""
    for program, package in PROGRAMS.items():
        if find(program) is None:
            return f"{program} is not installed: Debian's package {package} has it."
    if os.geteuid() != 0:
        return "Only root may make network namespaces."
    probe = ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "type", "veth"]
    found = subprocess.run(probe, capture_output=True, text=True, check=False)
    if found.returncode:
        return f"Network namespaces can't be made here: {found.stderr.strip()}"
    return ""


def is_inside() -> bool:
    return _INSIDE in os.environ


def enter(arguments: Sequence[str]) -> int:
    """Runs `python arguments` isolated. Its exit code."""
    options = ("--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
    command = ["unshare", *options, sys.executable, *arguments]
    env = {**os.environ, _INSIDE: "yes"}
    return subprocess.run(command, env=env, check=False, preexec_fn=_end_with_parent).returncode


def _end_with_parent() -> None:
    """However that ends: unshare takes no notice of SIGTERM."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare() -> None:
    """Once inside: named namespaces are this tree's own, and 127.0.0.1 works."""
    os.makedirs(_NAMESPACES, exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", _NAMESPACES)
    run("ip", "link", "set", "lo", "up")


def find(program: str) -> str | None:
    # Those of an administrator are not on everybody's path.
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def run(program: str, *arguments: str, said: str = "") -> None:
    """Runs a program of `PROGRAMS`. Raises RuntimeError with what it said."""
    found = subprocess.run(
        [find(program) or program, *arguments],
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if found.returncode:
        raise RuntimeError(f"{program} {' '.join(arguments)}: {found.stderr.strip()}")
