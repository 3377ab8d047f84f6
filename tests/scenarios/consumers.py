"""What the killings are done to: consumers that note each step in a file of their own, so that a
`kill -9` leaves the evidence. Run as `python -m tests.scenarios.consumers KIND URL NOTES NAME`.

A note is a line: the moment (of the clock that all processes share), a word, and the message.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import fanlog

BACKOFF_MAX_SECONDS = 0.2
SESSION_SECONDS = 1.0
VISIBILITY_SECONDS = 2.0
# On a slow machine the same job is in hand at one kill after the other.
DELIVERIES_MAX = 25


class Notes:
    """Lines that are in the kernel's hands before the next step."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, word: str, value: bytes) -> None:
        os.write(self._fd, b"%d %s %s\n" % (time.monotonic_ns(), word.encode(), value))


async def follow(client: fanlog.Client, notes: Notes, name: str) -> None:
    """A member of the group: every message counts once it has noted it."""
    async with client.consume(
        "in", group="followers", reset="earliest", commit="iterate", session_seconds=SESSION_SECONDS
    ) as member:
        async for message in member:
            notes.write("done", message.value)


async def transform(client: fanlog.Client, notes: Notes, name: str) -> None:
    """From one topic to another, in transactions."""

    def same(message: fanlog.Message) -> bytes:
        return message.value

    await client.transform(
        "in",
        "out",
        same,
        group="transformers",
        reset="earliest",
        session_seconds=SESSION_SECONDS,
        batch_records=200,
    )


async def work(client: fanlog.Client, notes: Notes, name: str) -> None:
    """A queue's worker."""
    async with client.work(
        "jobs",
        queue="workers",
        prefetch=1,
        visibility_seconds=VISIBILITY_SECONDS,
        max_deliveries=DELIVERIES_MAX,
    ) as worker:
        async for job in worker:
            notes.write("got", job.value)
            await asyncio.sleep(0.002)
            try:
                await job.ack()
            except fanlog.errors.LeaseLostError:
                # The broker was killed meanwhile, and another worker was quicker.
                notes.write("late", job.value)
            else:
                notes.write("acked", job.value)


KINDS = {"follow": follow, "transform": transform, "work": work}


async def main(kind: str, url: str, path: str, name: str) -> None:
    notes = Notes(path)
    while True:
        try:
            async with fanlog.connect(url, backoff_max_seconds=BACKOFF_MAX_SECONDS) as client:
                await KINDS[kind](client, notes, name)
        except fanlog.errors.LinkError:
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
