"""`fanlog generate`: example data into topics, so that examples and pipelines have something to
work on."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from fanlog.cli.session import DEFAULT_URL, Url, with_client
from fanlog.cli.terminal import say_done
from fanlog.client.aio import Client
from fanlog.errors import InvalidArgumentError
from fanlog.spark.examples import EPOCH_US, KINDS, Example, Shape

EXAMPLE = "Example: [bold]fanlog generate orders payments --records 10000 --seed 1[/]"
# How many messages go out before the clock is looked at.
_PACE_MESSAGES = 100

Kinds = Annotated[
    list[str] | None,
    typer.Argument(help="Kinds of data: orders, payments, sensors, chat.", metavar="KIND"),
]


def generate(
    kinds: Kinds = None,
    *,
    records: Annotated[
        int, typer.Option("--records", min=1, help="Messages of each kind.")
    ] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same data.")] = 1,
    per_second: Annotated[
        float,
        typer.Option("--per-second", min=0.001, help="Average messages per second of event time."),
    ] = 100.0,
    bad: Annotated[
        int,
        typer.Option("--bad", min=0, max=1000, help="Messages of a thousand that can't be parsed."),
    ] = 0,
    live: Annotated[
        bool, typer.Option("--live", help="Publish in real time, from now on.")
    ] = False,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Partitions of a new topic.")
    ] = 2,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Text in front of the names of the topics.")
    ] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Publish example data: orders and payments, sensor readings, chat."""
    wanted = list(dict.fromkeys(kinds or KINDS))
    for kind in wanted:
        if kind not in KINDS:
            raise InvalidArgumentError(f"There is no kind {kind!r}: use {', '.join(KINDS)}.")
    start_us = time.time_ns() // 1000 if live else EPOCH_US
    shape = Shape(per_second, start_us, bad)
    streams = [islice(KINDS[kind](seed, shape), records) for kind in wanted]
    examples = heapq.merge(*streams, key=lambda example: example.event_time_us)

    async def publish(client: Client) -> int:
        for kind in wanted:
            await client.create_topic(prefix + kind, partitions=partitions, exist_ok="any")
        return await _publish(client, examples, prefix, live=live)

    count = with_client(url, publish, reconnect=live)
    say_done(f"{count:,} messages are in {', '.join(prefix + kind for kind in wanted)}.")


async def _publish(client: Client, examples: Iterator[Example], prefix: str, *, live: bool) -> int:
    count = 0
    # The events' own clock: it began with the wall clock, and nobody can set it.
    clock_s = time.time() - time.monotonic()
    for example in examples:
        if live:
            ahead_s = example.event_time_us / 1e6 - clock_s - time.monotonic()
            if ahead_s > 0:
                await client.flush()
                await asyncio.sleep(ahead_s)
        await client.send(
            prefix + example.topic,
            example.value,
            key=example.key,
            event_time=example.event_time_us,
        )
        count += 1
        if count % _PACE_MESSAGES == 0:
            await asyncio.sleep(0)
    await client.flush()
    return count
