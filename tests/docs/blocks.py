"""Runs the examples of a document as its reader would: in order, against a real broker, in a folder
of their own. What comments in a document may say is in CONTRIBUTING.md, "Examples".

Law: every Python block is run, or says why not. A new page needs no new test."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Literal

import fanlog
from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
# A busy machine takes its time; nothing here should come near it.
PATIENCE_SECONDS = 60.0

Language = Literal["python", "sh", "test"]

_STEP = re.compile(
    r"^(?P<indent> *)```(?P<language>[a-z]+)(?P<options>[^\n]*)\n(?P<block>.*?)^ *```$"
    r"|^ *<!-- (?P<word>test|until|not run|background)\b:?(?P<said>.*?)-->",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r"title=\"(?P<title>[^\"]+)\"")
_SPARK = re.compile(r"\bspark\b|\.format\(\"fanlog\"\)")


@dataclass(frozen=True, slots=True)
class Step:
    """A block, or hidden code between blocks, with what the comment before it says."""

    document: Path
    line: int
    language: Language
    code: str
    file: str = ""
    until: str = ""
    not_run: str = ""
    background: bool = False

    @property
    def needs_spark(self) -> bool:
        return self.language == "python" and _SPARK.search(self.code) is not None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def read_steps(document: Path) -> list[Step]:
    """What there is to run in a document, in its order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    steps: list[Step] = []
    said: dict[str, str] = {}
    for found in _STEP.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["word"] == "test":
            code = textwrap.dedent(found["said"]).strip("\n")
            steps.append(Step(document, line + 1, "test", code))
        elif found["word"]:
            said[found["word"]] = " ".join(found["said"].split())
            if found["word"] == "not run" and not said["not run"]:
                raise AssertionError(f"{document}:{line} does not say why it is not run")
        elif found["language"] in ("python", "sh"):
            title = _TITLE.search(found["options"])
            steps.append(
                Step(
                    document,
                    line + 1,
                    "python" if found["language"] == "python" else "sh",
                    textwrap.dedent(found["block"]),
                    file=title["title"] if title else "",
                    until=said.get("until", ""),
                    not_run=said.get("not run", ""),
                    background="background" in said,
                )
            )
            said = {}
    return steps


@dataclass(frozen=True, slots=True)
class Program:
    """A shell block that stays in the background."""

    command: str
    process: subprocess.Popen[bytes]
    output: Path

    def end(self) -> None:
        if self.process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass(slots=True)
class Reader:
    """Somebody who does what a document says, in a folder of their own."""

    folder: Path
    broker: BrokerProcess | None = None
    names: dict[str, Any] = field(default_factory=dict[str, Any])
    client: fanlog.Client | None = None
    patience_seconds: float = PATIENCE_SECONDS
    port: int = field(default_factory=free_port)
    redis_port: int = field(default_factory=free_port)
    programs: list[Program] = field(default_factory=list["Program"])

    def __post_init__(self) -> None:
        self.names |= {"asyncio": asyncio, "fanlog": fanlog, "url": self.url}
        self.names |= {"shown": self.shown, "stop": self.stop}

    @property
    def url(self) -> str:
        return f"fanlog://127.0.0.1:{self.port}"

    def start_broker(self) -> None:
        self.broker = BrokerProcess(self.folder / "broker", "--redis-port", str(self.redis_port))
        self.broker.port = self.port
        self.broker.start()

    async def follow(self, steps: list[Step]) -> None:
        """Takes each step, and fails with its place in the document."""
        for step in steps:
            if step.not_run:
                continue
            try:
                await self._take(step)
            except Exception as fault:
                fault.add_note(f"in the example at {step}")
                raise

    async def _take(self, step: Step) -> None:
        if step.language == "sh":
            await asyncio.to_thread(self._run_shell, step)
        elif step.file.endswith(".py"):
            (self.folder / step.file).write_text(self._adapted(step.code), encoding="utf-8")
        else:
            await self._run_python(step)

    def _adapted(self, code: str) -> str:
        """With the ports of this test."""
        return code.replace("127.0.0.1:7420", f"127.0.0.1:{self.port}").replace(
            "port=7421", f"port={self.redis_port}"
        )

    async def _run_python(self, step: Step) -> None:
        tree = ast.increment_lineno(ast.parse(self._adapted(step.code)), step.line - 1)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, str(ROOT / step.document), "exec", flags=flags)
        if _uses_a_client(tree) or "client" in step.until:
            self.names["client"] = await self._connected()
        if step.until:
            await self._run_until(code, step.until)
        elif code.co_flags & inspect.CO_COROUTINE:
            await asyncio.wait_for(eval(code, self.names), self.patience_seconds)
        elif step.language == "test":
            exec(code, self.names)
        else:
            # In a thread: it may start an event loop of its own.
            await asyncio.to_thread(exec, code, self.names)

    async def _connected(self) -> fanlog.Client:
        if self.client is None:
            self.client = await fanlog.connect(self.url, wait_seconds=PATIENCE_SECONDS)
        return self.client

    async def _run_until(self, code: CodeType, condition: str) -> None:
        """Runs a block that may never end, until the condition is true."""
        if code.co_flags & inspect.CO_COROUTINE:
            running = asyncio.ensure_future(eval(code, self.names))
        else:
            running = asyncio.ensure_future(asyncio.to_thread(exec, code, self.names))
        deadline = time.monotonic() + self.patience_seconds
        while not await self._is_true(condition):
            if running.done():
                await running  # raises what went wrong
            assert time.monotonic() < deadline, f"this did not become true: {condition}"
            await asyncio.sleep(0.02)
        for query in self.names["spark"].streams.active if "spark" in self.names else ():
            query.stop()
        if code.co_flags & inspect.CO_COROUTINE:
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def _is_true(self, condition: str) -> bool:
        """Whether it is true by now; what it names may not be there yet."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        with contextlib.suppress(NameError, fanlog.errors.TopicNotFoundError):
            value = eval(compile(condition, "condition", "eval", flags=flags), self.names)
            return bool(await value if inspect.isawaitable(value) else value)
        return False

    def _run_shell(self, step: Step) -> None:
        command = ["bash", "-euo", "pipefail", "-c", step.code]
        if step.background:
            output = self.folder / f".output-{len(self.programs)}"
            with output.open("wb") as stream:
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.programs.append(Program(step.code, process, output))
            return
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        self.names["output"] = ended.stdout.decode()
        assert ended.returncode == 0, f"{step.code}\n{self.names['output']}"

    def _environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("FANLOG_")}
        paths = [str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return {
            **ours,
            "PATH": os.pathsep.join(programs),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "FANLOG_URL": self.url,
            "FANLOG_LISTENER_PORT": str(self.port),
            "FANLOG_REDIS_PORT": str(self.redis_port),
        }

    def shown(self, text: str) -> None:
        """Waits until a program that is in the background now has printed a text."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            running = [one for one in self.programs if one.process.poll() is None]
            printed = [one.output.read_text("utf-8", "replace") for one in running]
            if any(text in one for one in printed):
                return
            time.sleep(0.02)
        raise AssertionError(f"{text!r} was not printed, but:\n" + "\n---\n".join(printed))

    def stop(self, text: str) -> None:
        """Ends the programs in the background whose command has this text, as Ctrl-C would."""
        stopped = [program for program in self.programs if text in program.command]
        assert stopped, f"nothing in the background has {text!r}"
        for program in stopped:
            program.end()

    async def leave(self) -> None:
        """Ends all that was started, the last first."""
        if self.client is not None:
            await self.client.close()
        for program in reversed(self.programs):
            program.end()
        if self.broker is not None:
            self.broker.stop()


def _uses_a_client(tree: ast.Module) -> bool:
    """Whether a block reads the name `client`, and nothing in it gives it a meaning."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "client"]
    return bool(names) and all(isinstance(node.ctx, ast.Load) for node in names)


def documents() -> Iterator[Path]:
    """Every document whose examples are run."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        document = path.relative_to(ROOT)
        if any(step.language == "python" for step in read_steps(document)):
            yield document
