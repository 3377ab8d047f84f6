"""A person at a terminal, in an environment where nothing was installed but what a page says. What
the page says about default ports is true on the ports that this person has been given."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import textwrap
import threading
from pathlib import Path

from tests.packaging.environments import Bare
from tests.servers import free_port

# No step takes so long; on a busy machine a Spark takes minutes to start.
STEP_SECONDS_MAX = 600.0
NATIVE, REDIS, HTTP = "7420", "7421", "7422"


class Program:
    """A command that was left running in a terminal of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: list[str] = []
        self._more = threading.Condition()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def said(self) -> str:
        with self._more:
            return "".join(self._said)

    def wait_for(self, words: str) -> str:
        """Everything it has said, once these words are among it."""
        with self._more:
            found = self._more.wait_for(
                lambda: words in "".join(self._said) or self.process.poll() is not None,
                STEP_SECONDS_MAX,
            )
            said = "".join(self._said)
        assert found, f"it still runs and has not said {words!r}: {said}"
        assert words in said
        return said

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STEP_SECONDS_MAX)
        self.process.kill()
        self._listening.join(STEP_SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._said.append(line)
                self._more.notify_all()
        with self._more:
            self._more.notify_all()


class User:
    def __init__(self, bare: Bare, package: Path) -> None:
        self.bare = bare
        self.package = package
        self.home = bare.home
        self._ports = {port: str(free_port()) for port in (NATIVE, REDIS, HTTP)}
        self._programs: list[Program] = []
        self._number = 0

    @property
    def url(self) -> str:
        return f"fanlog://127.0.0.1:{self._ports[NATIVE]}"

    def _environment(self) -> dict[str, str]:
        """Stands in for the defaults, which another broker on this machine may have taken."""
        return self.bare.environment(
            FANLOG_URL=self.url,
            FANLOG_LISTENER_PORT=self._ports[NATIVE],
            FANLOG_REDIS_PORT=self._ports[REDIS],
            FANLOG_WEB_PORT=self._ports[HTTP],
            PYTHONUNBUFFERED="1",
        )

    def _here(self, text: str) -> str:
        for usual, ours in self._ports.items():
            text = re.sub(rf"\b{usual}\b", ours, text)
        return re.sub(r"pip install '?fanlog(\[\w+\])?'?", rf"pip install '{self.package}\1'", text)

    def tries(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Types commands into a shell, and sees how they end."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(commands)],
            check=False,
            cwd=self.home,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS_MAX,
        )

    def types(self, commands: str) -> str:
        """Types commands that must work; what they print."""
        ended = self.tries(commands)
        assert ended.returncode == 0, f"{commands}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def leaves_running(self, command: str) -> Program:
        """Types a command into a terminal of its own."""
        program = Program(
            subprocess.Popen(
                ["bash", "-c", f"exec {self._here(command.strip())}"],
                cwd=self.home,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        self._programs.append(program)
        return program

    def saves(self, program: str) -> Path:
        self._number += 1
        path = self.home / f"program_{self._number}.py"
        path.write_text(self._here(program), encoding="utf-8")
        return path

    def runs(self, program: str) -> str:
        """Saves a program, and runs it; what it prints."""
        return self.types(f"python {self.saves(program).name}")

    def starts(self, program: str) -> Program:
        return self.leaves_running(f"python {self.saves(program).name}")

    def leaves(self) -> None:
        for program in reversed(self._programs):
            program.stop()


def in_a_program(lines: str, before: str = "", after: str = "") -> str:
    """Lines of a page that use `client`, in the program around them that a reader adds."""
    body = textwrap.indent(f"{lines}\n{textwrap.dedent(after)}", " " * 8)
    return "\n".join(
        [
            "import asyncio",
            "import fanlog",
            textwrap.dedent(before),
            "async def main():",
            f'    async with fanlog.connect("fanlog://127.0.0.1:{NATIVE}") as client:',
            body,
            "asyncio.run(main())",
        ]
    )
