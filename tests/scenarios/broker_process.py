"""A `fanlog serve` in a process of its own, for scenarios that kill, stop and restart it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from types import TracebackType

from tests.forking import PIPE, Program, fork
from tests.servers import free_port

READY = re.compile(r"fanlogs?://([^\s:]+):(\d+)")
REDIS = re.compile(r"^ *redis +(?:off|rediss?://[^\s:]+:(\d+))")
HTTP = re.compile(r"^ *web +(?:off|https?://[^\s:]+:(\d+))")


# A stop takes a moment; on a busy machine with a slow disk it may take long.
STOP_SECONDS_MAX = 100


class BrokerProcess:
    """Started on 127.0.0.1; the first start takes a free port, later ones the same, which nobody
    is given by chance while the broker is down."""

    def __init__(
        self,
        folder: Path | None,
        *flags: str,
        env: dict[str, str] | None = None,
        files_max: int = 0,
        log: Path | None = None,
    ) -> None:
        """`files_max` is the process's limit of open files; `log` is where its log lines go."""
        self.folder = folder
        self._files_max = files_max
        self._log = log
        self._where = ["--memory"] if folder is None else ["--data", str(folder)]
        self._flags = flags
        self._env = env
        self._process: Program | None = None
        self.port = free_port()
        self.redis_port = 0
        self.http_port = 0

    def start(self) -> None:
        command = ["serve", "--port", str(self.port)]
        if "--redis-port" not in self._flags:
            command += ["--redis-port", "-1"]
        if "--http-port" not in self._flags:
            command += ["--http-port", "-1"]
        command += [*self._where, *self._flags]
        with open(self._log or os.devnull, "ab") as log:
            self._process = fork(
                *("fanlog", *command),
                env=self._env,
                stdout=PIPE,
                stderr=log.fileno(),
                files_max=self._files_max,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            ready, redis, http = READY.search(line), REDIS.search(line), HTTP.search(line)
            if ready:
                self.port = int(ready[2])
            if redis:
                self.redis_port = int(redis[1] or 0)
            if http:
                self.http_port = int(http[1] or 0)
                return
        said = self._log.read_text()[-3000:] if self._log is not None else ""
        raise AssertionError(f"the broker ended before it was ready\n{said}")

    @property
    def url(self) -> str:
        return f"fanlog://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        code = process.wait(timeout=STOP_SECONDS_MAX)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
