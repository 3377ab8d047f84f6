"""`fanlog generate`: example data into topics, so that examples and pipelines have something to
work on."""

from __future__ import annotations

import asyncio
import datetime as dt
import heapq
import time
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from fanlog.cli.quantities import parse_duration
from fanlog.cli.session import DEFAULT_URL, Url, with_client
from fanlog.cli.terminal import say_done
from fanlog.client.aio import Client
from fanlog.errors import InvalidArgumentError
from fanlog.spark.examples import KINDS, Example, Shape

EXAMPLE = "Example: [bold]fanlog generate orders payments --records 10000 --seed 1[/]"
# How many messages go out before the clock is read.
_PACE_MESSAGES = 100
_LIVE_PER_SECOND = 100.0
_MINUTE_US = 60_000_000

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
    seed: Annotated[
        int, typer.Option("--seed", help="The same seed and --start produce the same data.")
    ] = 1,
    over: Annotated[
        str,
        typer.Option("--over", help="Approximate time span of the event times.", metavar="1h"),
    ] = "1h",
    start: Annotated[
        str,
        typer.Option(
            "--start",
            help="The first event time, such as 2026-01-31T12:00:00Z. Default: the last "
            "one is now.",
            metavar="TIME",
        ),
    ] = "",
    per_second: Annotated[
        float | None,
        typer.Option(
            "--per-second",
            min=0.001,
            help="Average messages per second of event time, instead of --over.",
        ),
    ] = None,
    bad: Annotated[
        int,
        typer.Option("--bad", min=0, max=1000, help="Messages per thousand that can't be parsed."),
    ] = 0,
    live: Annotated[
        bool, typer.Option("--live", help="Publish in real time, starting now.")
    ] = False,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Partitions of a new topic.")
    ] = 2,
    prefix: Annotated[str, typer.Option("--prefix", help="Prefix of the topic names.")] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """Publish example data: orders and payments, sensor readings, chat.

    Event times begin at a full minute, and end now, unless you set their begin with --start.
    """
    wanted = list(dict.fromkeys(kinds or KINDS))
    for kind in wanted:
        if kind not in KINDS:
            raise InvalidArgumentError(f"There is no kind {kind!r}: use {', '.join(KINDS)}.")
    shape = _shape(records, over, start, per_second, bad, live=live)
    streams = [islice(KINDS[kind](seed, shape), records) for kind in wanted]
    examples = heapq.merge(*streams, key=lambda example: example.event_time_us)

    async def publish(client: Client) -> int:
        for kind in wanted:
            await client.create_topic(prefix + kind, partitions=partitions, exist_ok="any")
        return await _publish(client, examples, prefix, live=live)

    count = with_client(url, publish, reconnect=live)
    say_done(f"{count:,} messages are in {', '.join(prefix + kind for kind in wanted)}.")


def _shape(
    records: int, over: str, start: str, per_second: float | None, bad: int, *, live: bool
) -> Shape:
    now_us = time.time_ns() // 1000
    if live:
        return Shape(per_second or _LIVE_PER_SECOND, now_us, bad)
    try:
        seconds = records / per_second if per_second else parse_duration(over)
        if start:
            start_us = round(_moment(start).timestamp() * 1_000_000)
        else:
            # Times between messages are random, so the total differs somewhat from the requested
            # time.
            start_us = now_us - round(seconds * 1_050_000)
            start_us -= start_us % _MINUTE_US
    except ValueError as fault:
        raise InvalidArgumentError(f"{fault}.") from fault
    if seconds <= 0:
        raise InvalidArgumentError(f"--over is {over}, but must be longer, such as 10m or 1h.")
    return Shape(records / seconds, start_us, bad)


def _moment(text: str) -> dt.datetime:
    """A moment; UTC where it names no zone, so that the same words give the same data anywhere."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--start is {text!r}, but must be a time such as 2026-01-31T12:00:00Z"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


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
