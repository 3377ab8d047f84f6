"""The same with FastAPI: a reader of a stream is what `StreamingResponse` takes. It needs a broker:

    fanlog serve --memory
    python examples/resumable/fastapi_server.py
    curl -X POST 'http://127.0.0.1:8001/ask?question=why'
    curl -N http://127.0.0.1:8001/answers/answer-…

Any number of these processes may run: one begins an answer, and any of them reads it.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from server import model

import fanlog

parser = argparse.ArgumentParser(description="Answers that survive a reload, with FastAPI.")
parser.add_argument("--broker", default="fanlog://127.0.0.1:7420", help="the broker's address")
parser.add_argument("--port", type=int, default=8001, help="where to listen")
parser.add_argument("--delay", type=float, default=0.08, help="seconds for each token")
given = parser.parse_args()
writing: set[asyncio.Task[None]] = set()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with fanlog.connect(given.broker, wait_seconds=30) as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


def client() -> fanlog.Client:
    return app.state.client


@app.post("/ask")
async def ask(question: str) -> dict[str, str]:
    stream = client().stream(f"answer-{secrets.token_hex(8)}", ttl_seconds=600)
    await stream.open()
    task = asyncio.create_task(write(stream, question))
    writing.add(task)
    task.add_done_callback(writing.discard)
    return {"stream": stream.name}


async def write(stream: fanlog.Stream[str], question: str) -> None:
    async with stream:
        async for token in model(question, given.delay):
            await stream.send(token)


@app.get("/answers/{name}")
async def answer(name: str, position: str = "") -> StreamingResponse:
    reader = client().stream(name).read(position=position)
    try:
        await reader.start()
    except fanlog.errors.TopicNotFoundError as gone:
        raise HTTPException(404, str(gone)) from gone
    return StreamingResponse(reader, media_type="text/plain")


if __name__ == "__main__":
    uvicorn.run(app, port=given.port)
