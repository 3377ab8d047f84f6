"""Follows one document in a process of its own, Spark's examples included: `python -m
tests.docs.reader docs/spark.md`, in an empty folder. Spark takes the broker's address from the
environment that it was started in, so that no session of other tests will do."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.docs.blocks import Reader, read_steps

# Spark is slow to start, and slower on a busy machine.
PATIENCE_SECONDS = 300.0


async def follow(document: Path) -> None:
    reader = Reader(Path.cwd(), patience_seconds=PATIENCE_SECONDS)
    os.environ["FANLOG_URL"] = reader.url
    steps = [step for step in read_steps(document) if step.language != "sh"]
    try:
        reader.start_broker()
        await reader.follow(steps)
    finally:
        await reader.leave()


if __name__ == "__main__":
    asyncio.run(follow(Path(sys.argv[1])))
