"""A `fanlog edge` in a process of its own, for tests that kill it, and for its banner."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from types import TracebackType

from tests.forking import PIPE, fork
from tests.scenarios.broker_process import STOP_SECONDS_MAX

_FANLOG = re.compile(r"^ *fanlog +(?:off|fanlog://[^\s:]+:(\d+))")
_REDIS = re.compile(r"^ *redis +(?:off|redis://[^\s:]+:(\d+))")
_WEB = re.compile(r"^ *web +(?:off|http://[^\s:]+:(\d+))")


class EdgeProcess:
    """Started on 127.0.0.1, on free ports; `log` is where its log lines go."""

    def __init__(self, upstream: str, log: Path, *flags: str) -> None:
        command = ["edge", "--upstream", upstream, "--port", "0", "--redis-port", "-1"]
        command += ["--http-port", "0", *flags]
        self.log = log
        self.port = self.redis_port = self.http_port = 0
        with log.open("ab") as out:
            self._process = fork("fanlog", *command, stdout=PIPE, stderr=out.fileno())

    def wait(self) -> None:
        """Waits for the banner, which says where it listens."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := _FANLOG.search(line):
                self.port = int(found[1] or 0)
            if found := _REDIS.search(line):
                self.redis_port = int(found[1] or 0)
            if found := _WEB.search(line):
                self.http_port = int(found[1] or 0)
                return
        raise AssertionError(f"the edge ended before it was ready\n{self.log.read_text()[-3000:]}")

    @property
    def url(self) -> str:
        return f"fanlog://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process = self._process
        if process.poll() is None:
            process.send_signal(how)
        code = process.wait(timeout=STOP_SECONDS_MAX)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def __enter__(self) -> EdgeProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
