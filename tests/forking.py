"""Programs of this project without the second that Python and its imports take. One process has
them imported, and forks for each program: a process of its own, with its own folder, variables,
files and limits, that is stopped, killed and ends as any other. That the programs also start
without such help is what tests/cli is about.

What is asked for goes through a socket: the arguments and all that, the three open files, and a
channel. Whoever forked a program keeps it there until the channel is closed, so that its id is not
given to another process meanwhile. It says the id on the channel, and at the end the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

# What brokers and clients import by and by.
_IMPORTED = (
    "fanlog.cli.serve",
    "fanlog.client.aio",
    "fanlog.edge.upstreams",
    "fanlog.listeners.web.local_bus",
    "fanlog.listeners.web.server",
    "fanlog.node",
    "uvloop",
)
# For a program's stdout: the test reads it.
PIPE = -1
_NUMBER = 8
_FILES = 4
# Arguments and variables; more than a system takes of them for one process.
_ASKED_MAX = 1 << 21


class Program:
    """A program that was forked, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, args: tuple[str, ...], channel: socket.socket, stdout: io.TextIOWrapper | None
    ) -> None:
        self.args = args
        self._channel = channel
        self._code: int | None = None
        self.stdout = stdout
        self.pid = self._next()

    def _next(self) -> int:
        with contextlib.suppress(OSError):
            if len(said := self._channel.recv(_NUMBER, socket.MSG_WAITALL)) == _NUMBER:
                return int.from_bytes(said, signed=True)
        raise AssertionError("the process that forks programs has ended")

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        if self._code is None and select.select([self._channel], [], [], seconds)[0]:
            self._code = self._next()
            self._channel.close()
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    module: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    stdout: int = 1,
    stderr: int = 2,
    files_max: int = 0,
) -> Program:
    """`python -m module arguments` in this folder, on the cores and with the limits of the test.
    With `PIPE` its stdout is read by the test; `files_max` is how many files it may open."""
    wanted = {
        "module": module,
        "arguments": arguments,
        "folder": os.getcwd(),
        "variables": dict(os.environ if env is None else env),
        "cores": list(os.sched_getaffinity(0)),
        "files": [files_max] * 2 if files_max else resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    ours, theirs = socket.socketpair()
    reads, writes = os.pipe() if stdout == PIPE else (-1, os.dup(stdout))
    with theirs, open(os.devnull, "rb") as nothing:
        files = [nothing.fileno(), writes, stderr, theirs.fileno()]
        socket.send_fds(_forker(), [json.dumps(wanted).encode()], files)
    os.close(writes)
    said = None if reads < 0 else os.fdopen(reads, encoding="utf-8")
    return Program((module, *arguments), ours, said)


@functools.cache
def _forker() -> socket.socket:
    """The way to the process that forks, which ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ASKED_MAX)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(theirs.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(asked: socket.socket) -> Any:
    """Forks for each that asks. Returns in the new process, with what it is to do, or with None
    where nobody can ask any more."""
    while True:
        said, files, _, _ = socket.recv_fds(asked, _ASKED_MAX, _FILES)
        _reap()
        if not said:
            return None
        if os.fork() == 0:
            asked.close()
            *stdio, channel = files
            child = os.fork()
            if child == 0:
                os.close(channel)
                for number, file in enumerate(stdio):
                    os.dup2(file, number)
                    os.close(file)
                return json.loads(said)
            for file in stdio:
                os.close(file)
            _keep(child, channel)
        for file in files:
            os.close(file)


def _reap() -> None:
    """Waits for those whose program has ended: so its CPU time counts as that of the tests."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(child: int, channel: int) -> None:
    """Tells the id of a program, and how it ended; ends when nobody wants to know any more."""
    # What is typed to all is for the program, which may take a while to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.write(channel, child.to_bytes(_NUMBER, signed=True))
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with contextlib.suppress(OSError):
        os.write(channel, code.to_bytes(_NUMBER, signed=True))
        os.read(channel, 1)
    os.waitpid(child, 0)
    os._exit(0)


def _main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    from fanlog.cli import main, terminal  # noqa: PLC0415

    # What the command line makes of its options is kept.
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(io.StringIO()):
        main(["--help"])
        main(["serve", "--port", "none"])
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is None:
        return
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["variables"])
    os.sched_setaffinity(0, wanted["cores"])
    resource.setrlimit(resource.RLIMIT_NOFILE, wanted["files"])
    sys.argv = [wanted["module"], *wanted["arguments"]]
    runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
