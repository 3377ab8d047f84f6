"""Answers that survive a reload: a page asks a question, a fake model answers token by token, and
the answer is a resumable stream. One command starts it all:

    python examples/resumable/server.py

The writing and the reading know nothing of each other. A tab can be reloaded, closed, or opened a
second time in the middle of an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import fanlog
from fanlog.config import Config
from fanlog.config_web import WebOptions

HERE = Path(__file__).parent
ANSWER = """\
A stream is a topic of its own. The server appends tokens to it, and ends it. Whoever reads it \
begins at the start, or at the position that was reached before.

So a reload costs nothing: the page asks for the same stream again, gets what is there at once, \
and then follows the rest. A second tab does the same. The model is asked only once.

When nobody has written to it for a while, the broker deletes the stream.
"""


async def model(question: str, delay_seconds: float) -> AsyncIterator[str]:
    """Stands for a language model: it takes its time for each token."""
    for token in f"You asked: {question}\n\n{ANSWER}".split(" "):
        await asyncio.sleep(delay_seconds)
        yield token + " "


class Answers:
    """Answers questions, each in a stream of its own."""

    def __init__(self, broker: fanlog.Client, delay_seconds: float) -> None:
        self._broker = broker
        self._delay_seconds = delay_seconds
        self._writing: set[asyncio.Task[None]] = set()

    async def ask(self, job: fanlog.Job) -> dict[str, str]:
        """Begins an answer, and says where it can be read."""
        stream = self._broker.stream(f"answer-{secrets.token_hex(8)}", ttl_seconds=600)
        await stream.open()
        task = asyncio.create_task(self._write(stream, job.text))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return {"stream": stream.name}

    async def _write(self, stream: fanlog.Stream[str], question: str) -> None:
        async with stream:
            async for token in model(question, self._delay_seconds):
                await stream.send(token)


async def main(port: int, delay_seconds: float) -> None:
    web = WebOptions(port=port, folder=str(HERE))
    async with fanlog.Broker(None, Config(web=web)) as broker:
        listener = await broker.listen_web()
        print(f"Open http://127.0.0.1:{listener.port}/", flush=True)
        await broker.serve("ask", Answers(broker, delay_seconds).ask)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A page whose answers survive a reload.")
    parser.add_argument("--port", type=int, default=8000, help="where the page is")
    parser.add_argument("--delay", type=float, default=0.08, help="seconds for each token")
    given = parser.parse_args()
    asyncio.run(main(given.port, given.delay))
