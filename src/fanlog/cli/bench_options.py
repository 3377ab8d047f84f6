"""What the commands of `fanlog bench` share: their options, and how a report is shown and kept."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.quantities import parse_size
from fanlog.cli.terminal import err, out, say_done
from fanlog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fanlog.bench import Report
    from fanlog.bench.runner import BenchProgress

bench_app = typer.Typer(
    help="Measure Fanlog next to Redis and NATS.", no_args_is_help=True, rich_markup_mode="rich"
)

OTHERS = ("redis", "nats")
WEB_OTHERS = ("aiohttp", "websockets", "socketio")
Run = Callable[["BenchProgress"], "Report"]


class ListenerPort(StrEnum):
    """The protocol of the measured Fanlog listener."""

    NATIVE = "native"
    REDIS = "redis"
    WEBSOCKET = "websocket"
    SSE = "sse"

    @property
    def is_web(self) -> bool:
        return self in (ListenerPort.WEBSOCKET, ListenerPort.SSE)


class Received(StrEnum):
    """Whether subscribers take bytes out of the kernel as a real one must, or only count them."""

    COPY = "copy"
    DISCARD = "discard"


Receiving = Annotated[
    Received,
    typer.Option(
        "--receive", help="Subscribers read the bytes (take), or leave them in the kernel."
    ),
]
ByListener = Annotated[
    ListenerPort,
    typer.Option(
        "--listener",
        help="The port: Fanlog's own, that of Redis, or the web port by WebSocket or SSE. With "
        "the web port the comparison is with web servers that send to each client.",
    ),
]
Against = Annotated[
    str,
    typer.Option(
        "--against", help="Systems to compare with; none: only Fanlog.", metavar="redis,nats"
    ),
]
Subscribers = Annotated[
    str, typer.Option("--subscribers", help="How many, in turn.", metavar="N,N,...")
]
Payload = Annotated[int, typer.Option("--payload", help="The size of a message in bytes.", min=1)]
Seconds = Annotated[float, typer.Option("--seconds", help="How long each measurement takes.")]
Repeat = Annotated[
    int, typer.Option("--repeat", help="The number of runs; the median is shown.", min=1)
]
Json = Annotated[
    Path | None, typer.Option("--json", help="Write the report to this file.", metavar="FILE")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw the report into this file.", metavar="FILE.png")
]
Folder = Annotated[
    Path | None,
    typer.Option("--directory", help="Folder for data files. On a tmpfs, fsync means nothing."),
]


def numbers(text: str, flag: str, least: int = 1) -> tuple[int, ...]:
    """`1,10,100` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise InvalidArgumentError(f"{flag} is {text!r}, but must be numbers such as 1,10,100.")
    return tuple(int(part) for part in parts)


def byte_sizes(text: str, flag: str) -> tuple[int, ...]:
    """`400MiB,4GiB` as bytes."""
    try:
        sizes = tuple(parse_size(part.strip()) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) <= 0:
        raise InvalidArgumentError(f"{flag} is {text!r}, but must be sizes such as 400MiB,4GiB.")
    return sizes


def systems(against: str) -> tuple[Any, ...]:
    """Fanlog and the requested other systems."""
    names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in OTHERS:
            raise InvalidArgumentError(
                f"--against is {against!r}, but must be redis, nats or none."
            )
    return ("fanlog", *names)


def web_systems(against: str) -> tuple[Any, ...]:
    """Fanlog and the requested web servers; by default all of them."""
    names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    if tuple(names) == OTHERS:
        return ("fanlog", *WEB_OTHERS)
    for name in names:
        if name not in WEB_OTHERS:
            raise InvalidArgumentError(
                f"--against is {against!r}, but beside a web listener it must be "
                f"{', '.join(WEB_OTHERS)} or none."
            )
    return ("fanlog", *names)


def show(title: str, run: Run, json: Path | None, plot: Path | None) -> None:
    """Run a benchmark, print its table, and write the files that were asked for."""
    from fanlog.bench import progress_bar, render, save_plot, save_report  # noqa: PLC0415
    from fanlog.bench.plot import check_plot  # noqa: PLC0415
    from fanlog.bench.runner import silent  # noqa: PLC0415

    if plot is not None:
        check_plot(plot)
    if err().is_terminal:
        with progress_bar(title, err()) as progress:
            report = run(progress)
    else:
        report = run(silent)
    out().print(render(report))
    try:
        if json is not None:
            save_report(report, json)
            say_done(f"The report is in {json}.")
        if plot is not None:
            save_plot(report, plot)
            say_done(f"The picture is in {plot}.")
    except OSError as fault:
        sentence = f"{fault.filename} can't be written: {fault.strerror}."
        raise CommandError(sentence, ExitCode.FAILED) from fault
