"""The example of resumable streams, as it stands: its own server, and the one with FastAPI."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.scenarios.broker_process import BrokerProcess
from tests.servers import free_port

FOLDER = Path(__file__).parents[2] / "examples" / "resumable"
WAIT_S = 60.0
# Long enough to be in the middle of an answer, and short enough for a test.
DELAY = ("--delay", "0.01")


@contextmanager
def running(program: str, *words: str) -> Iterator[IO[str]]:
    """A program of the example, and what it prints."""
    command = [sys.executable, str(FOLDER / program), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stdout.close()


def ask(request: urllib.request.Request | str) -> str:
    """The answer to an HTTP request, as soon as somebody answers it."""
    end_at = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as refused:
            # Nobody serves the topic yet.
            if refused.code != 503 or time.monotonic() > end_at:
                raise
        except urllib.error.URLError:
            if time.monotonic() > end_at:
                raise
        time.sleep(0.05)


def post(url: str, body: Any = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    return json.loads(ask(urllib.request.Request(url, data, method="POST")))


def test_the_server_streams_an_answer_that_can_be_read_again() -> None:
    with running("server.py", "--port", "0", *DELAY) as said:
        found = re.search(r"http://\S+/", said.readline())
        assert found is not None
        base = found[0]
        assert "Answers that survive a reload" in ask(base)
        name = post(f"{base}v1/request/ask?timeout_seconds=60", {"text": "why?"})["json"]["stream"]
        first = ask(f"{base}v1/streams/{name}")
        assert first.startswith("You asked: why?\n\nA stream is a topic")
        assert ask(f"{base}v1/streams/{name}") == first


def test_the_same_works_with_fastapi_and_on_another_process() -> None:
    with BrokerProcess(None) as broker:
        ports = [free_port(), free_port()]
        words = [
            ("--broker", f"fanlog://127.0.0.1:{broker.port}", "--port", str(port), *DELAY)
            for port in ports
        ]
        with running("fastapi_server.py", *words[0]), running("fastapi_server.py", *words[1]):
            one, other = (f"http://127.0.0.1:{port}" for port in ports)
            name = post(f"{one}/ask?question=why%3F")["stream"]
            answer = ask(f"{other}/answers/{name}")
            assert answer.startswith("You asked: why?\n\nA stream is a topic")
            assert ask(f"{one}/answers/{name}") == answer
            with pytest.raises(urllib.error.HTTPError, match="404"):
                ask(f"{one}/answers/nothing")
