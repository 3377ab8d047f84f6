"""Commands without the half second that Python and its imports take. One process has `fanlog`
imported, and forks for each command: a process of its own, with its own folder, variables and
files, that ends as any other does.

What is asked for goes through a socket: the arguments and all that, and the three open files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_SIZE = 4
_FILES = 3


class Commands:
    """The process that forks, as a test sees it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.forked", str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                pass_fds=[theirs.fileno()],
            )

    def run(
        self, arguments: list[str], folder: Path, variables: dict[str, str], stdin: bytes
    ) -> tuple[int, bytes, bytes]:
        """The exit code of a command, and what it wrote to stdout and stderr."""
        wanted = json.dumps([arguments, str(folder), variables]).encode()
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(_FILES)]
            files[0].write(stdin)
            files[0].seek(0)
            size = len(wanted).to_bytes(_SIZE)
            socket.send_fds(self._socket, [size], [file.fileno() for file in files])
            self._socket.sendall(wanted)
            code = int.from_bytes(_exactly(self._socket, _SIZE), signed=True)
            for file in files:
                file.seek(0)
            return code, files[1].read(), files[2].read()

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _next(asked: socket.socket) -> tuple[list[str], list[int]] | None:
    """What the next command is, and its files; in the process that is to run it. None if there is
    none any more."""
    while True:
        head, files, _, _ = socket.recv_fds(asked, _SIZE, _FILES)
        if not head:
            return None
        arguments, folder, variables = json.loads(_exactly(asked, int.from_bytes(head)))
        child = os.fork()
        if not child:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(variables)
            return arguments, files
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        asked.sendall(os.waitstatus_to_exitcode(status).to_bytes(_SIZE, signed=True))


def _main() -> int:
    # Once, here, for all commands: what a command imports, and what it keeps of the options.
    import fanlog.node  # noqa: F401, PLC0415
    from fanlog.cli import main, terminal  # noqa: PLC0415

    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(io.StringIO()):
        main(["--help"])
        main(["topic", "list", "--url", "nowhere://"])
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    asked = socket.socket(fileno=int(sys.argv[1]))
    wanted = _next(asked)
    if wanted is None:
        return 0
    arguments, files = wanted
    for at, file in enumerate(files):
        os.dup2(file, at)
        os.close(file)
    asked.close()
    sys.argv = ["fanlog", *arguments]
    return main()


if __name__ == "__main__":
    sys.exit(_main())
