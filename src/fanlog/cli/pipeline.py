"""`fanlog pipeline ...`: list, copy, run and watch the ready-made Spark pipelines. Law: a run is a
process with a folder of its own, so that watching one needs nothing but to look there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fanlog.cli.exits import CommandError, ExitCode
from fanlog.cli.session import DEFAULT_URL, AsJson, with_client
from fanlog.cli.terminal import (
    err,
    new_table,
    on_terminal,
    out,
    print_json,
    printable,
    say_done,
)
from fanlog.client.aio import Client
from fanlog.errors import FanlogError, TopicNotFoundError
from fanlog.spark import pipelines
from fanlog.spark.pipelines.progress import Ends, Progress, look
from fanlog.spark.pipelines.runs import LOG, RECORD, Run, Running, last_run

pipeline_app = typer.Typer(
    help="Ready-made Spark pipelines: list, copy, run, watch.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

RUNS = Path("fanlog-pipelines")
_LOOK_SECONDS = 1.0
_STYLES = {"running": "green", "done": "dim", "failed": "bold red", "killed": "yellow"}

Name = Annotated[
    str, typer.Argument(help="A pipeline's name, or a folder that init has made.", metavar="NAME")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="The broker.", metavar="URL", envvar="FANLOG_URL")
]


@pipeline_app.command("list", epilog="Example: [bold]fanlog pipeline list[/]")
def list_pipelines(as_json: AsJson = False) -> None:
    """List the pipelines, what each does, and its options."""
    found = [pipelines.find(name) for name in pipelines.names()]
    if as_json:
        print_json(
            [{"name": some.name, "about": some.about, "options": some.options} for some in found]
        )
        return
    for some in found:
        engine = "declarative" if some.declarative else "a program"
        title = Text.assemble((some.name, "bold cyan"), f"  {some.about} ", (engine, "dim"))
        out().print(title)
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2))
        for name, option in some.options.items():
            default = Text("needed" if option.required else option.default, style="dim")
            default.truncate(40, overflow="ellipsis")
            table.add_row(Text(name, style="bold"), default, option.about)
        out().print(table)


@pipeline_app.command(epilog="Example: [bold]fanlog pipeline init clean my-clean[/]")
def init(
    name: Name,
    folder: Annotated[
        Path | None, typer.Argument(help="Where to; without: its name.", metavar="FOLDER")
    ] = None,
) -> None:
    """Copy a pipeline into a folder of your own, to change it."""
    pipeline = pipelines.find(name)
    target = folder or Path(pipeline.name)
    pipelines.copy(pipeline, target)
    say_done(f"{pipeline.name} is in {target}: run it with `fanlog pipeline run ./{target}`.")


@pipeline_app.command(
    epilog="Example: [bold]fanlog pipeline run archive --option topics=orders --option lake=lake[/]"
)
def run(
    name: Name,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="An option of the pipeline.", metavar="NAME=VALUE"),
    ] = None,
    *,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Where it keeps how far it is.", metavar="FOLDER"),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Spark's master.", metavar="MASTER")
    ] = "local[*]",
    every: Annotated[
        float, typer.Option("--every", min=0, help="Run again after so many seconds, until Ctrl-C.")
    ] = 0.0,
    url: UrlOption = None,
) -> None:
    """Run a pipeline, and show how far it is."""
    pipeline = pipelines.find(name)
    given = ({"url": url} if url else {}) | pipelines.parse_options(option or [])
    options = pipeline.settle(_absolute(given, pipeline))
    # A copy has the name of its pipeline, but a state of its own.
    folder = state or RUNS / pipeline.folder.name
    while True:
        _run_once(pipeline, options, folder, master)
        if not every:
            return
        time.sleep(every)


# Options that are folders: a run has a folder of its own, so that they must not depend on it.
_FOLDERS = ("lake", "report")


def _absolute(given: dict[str, str], pipeline: pipelines.Pipeline) -> dict[str, str]:
    defaults = {name: some.default for name, some in pipeline.options.items()}
    folders = {
        name: str(Path(value).absolute())
        for name in _FOLDERS
        if (value := given.get(name, defaults.get(name, "")))
    }
    return given | folders


def _run_once(
    pipeline: pipelines.Pipeline, options: dict[str, str], folder: Path, master: str
) -> None:
    environment = dict(os.environ)
    if master.startswith("local"):
        # A laptop's name may lead to an address that is not there.
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    watching = Watching(options.get("url", DEFAULT_URL), look(folder))
    running = Running(pipeline, options, folder, master, environment)
    shown: AbstractContextManager[Callable[[str], None]] = (
        LiveDisplay(watching, folder) if err().is_terminal else nullcontext(Lines(watching, folder))
    )
    try:
        with shown as show:
            while not running.wait(_LOOK_SECONDS):
                show(running.last_event())
            show(running.last_event())
    except KeyboardInterrupt:
        running.stop()
        err().print(f"{pipeline.name} is stopped; run it again, and it goes on where it was.")
        raise
    if running.run.exit_code:
        raise CommandError(
            f"{running.why()}\n{pipeline.name} failed; all that it said is in {folder / LOG}.",
            ExitCode.FAILED,
        )
    read = sum(watching.read.values())
    say_done(f"{pipeline.name} is done: {read:,} records in {watching.seconds:.0f} s.")


class Watching:
    """What a run's state folder and the broker say together, from one look to the next."""

    def __init__(self, url: str, before: Iterable[Progress] = ()) -> None:
        self._url = url
        self._begun = time.monotonic()
        self._before = {some.name: some.rows for some in before}
        self._last: dict[str, tuple[float, int]] = {}
        self.read: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def rate(self, some: Progress) -> float:
        """Records in a second since the stream's batch before this one."""
        now = time.monotonic()
        first = self._before.get(some.name, 0)
        self.read[some.name] = some.rows - first
        at, rows = self._last.get(some.name, (self._begun, first))
        if some.rows != rows:
            self._rates[some.name] = (some.rows - rows) / max(0.001, now - at)
            self._last[some.name] = (now, some.rows)
        return self._rates.get(some.name, 0.0)

    def ends(self, streams: Iterable[Progress]) -> Ends:
        """The ends of the streams' topics; without a broker, nothing is known."""
        topics = sorted({topic for some in streams for topic in some.topics})

        async def work(client: Client) -> Ends:
            found: dict[tuple[str, int], int] = {}
            for topic in topics:
                try:
                    info = await client.describe_topic(topic)
                except TopicNotFoundError:
                    continue
                found |= {(topic, some.partition): some.visible_end for some in info.partitions}
            return found

        if not topics:
            return {}
        try:
            return with_client(self._url, work)
        except FanlogError:
            return {}


class Lines:
    """Progress where no person looks: a line for each batch."""

    def __init__(self, watching: Watching, folder: Path) -> None:
        self._watching = watching
        self._folder = folder
        self._said: dict[str, int] = {}

    def __call__(self, event: str) -> None:
        streams = look(self._folder)
        new = [some for some in streams if self._said.get(some.name) != some.batch]
        if not new:
            return
        ends = self._watching.ends(new)
        for some in new:
            rate = self._watching.rate(some)
            lag = some.lag(ends)
            behind = "" if lag is None else f", {lag:,} behind"
            err().print(f"{some.name}: batch {some.batch}, {rate:,.0f} records/s{behind}")
            self._said[some.name] = some.batch


class LiveDisplay:
    """Progress as a table that changes in its place."""

    def __init__(self, watching: Watching, folder: Path) -> None:
        self._watching = watching
        self._folder = folder
        self._live = Live(console=err(), transient=True)

    def __enter__(self) -> Callable[[str], None]:
        self._live.__enter__()
        self._show("Spark is starting.")
        return self._show

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def _show(self, event: str) -> None:
        streams = look(self._folder)
        ends = self._watching.ends(streams)
        table = new_table("STREAM", ">BATCH", ">RECORDS", ">RECORDS/S", ">LAG")
        for some in streams:
            rate = self._watching.rate(some)
            table.add_row(
                Text(printable(some.name), style="bold cyan"),
                f"{some.batch:,}",
                f"{self._watching.read[some.name]:,}",
                f"{rate:,.0f}",
                _number(some.lag(ends)),
            )
        said = Text(f"{self._watching.seconds:.0f} s  {printable(event)}", style="dim")
        self._live.update(Group(table, said))


def _number(some: int | None) -> str:
    return "-" if some is None else f"{some:,}"


@pipeline_app.command(epilog="Example: [bold]fanlog pipeline status[/]")
def status(
    folder: Annotated[
        Path, typer.Argument(help="A state folder, or one that holds some.", metavar="FOLDER")
    ] = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show the last run of each pipeline, how far its streams are, and how far behind."""
    states = [path.parent for path in (folder / RECORD, *sorted(folder.glob(f"*/{RECORD}")))]
    found = [(state, some) for state in states if (some := last_run(state))]
    if as_json:
        print_json([_document(state, some) for state, some in found])
        return
    if not found and on_terminal():
        out().print(f"No pipeline has run in {folder}.", style="dim")
        return
    table = new_table("PIPELINE", "STATE", "STARTED", "STREAM", ">BATCH", ">OFFSETS", ">LAG")
    for state, some in found:
        _add_rows(table, state, some)
    out().print(table)


def _add_rows(table: Table, state: Path, run: Run) -> None:
    streams = look(state)
    ends = Watching(run.options.get("url", DEFAULT_URL)).ends(streams)
    head = (
        Text(printable(run.pipeline), style="bold cyan"),
        Text(run.state, style=_STYLES[run.state]),
        run.started.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
    )
    if not streams:
        table.add_row(*head, "", "", "", "")
    for i, some in enumerate(streams):
        figures = (f"{some.batch:,}", f"{some.rows:,}", _number(some.lag(ends)))
        table.add_row(*(head if i == 0 else ("", "", "")), printable(some.name), *figures)


def _document(state: Path, run: Run) -> dict[str, object]:
    streams = look(state)
    ends = Watching(run.options.get("url", DEFAULT_URL)).ends(streams)
    return {
        "pipeline": run.pipeline,
        "folder": str(state),
        "state": run.state,
        "started": run.started,
        "ended": run.ended,
        "exit_code": run.exit_code,
        "options": run.options,
        "streams": [
            {"name": some.name, "batch": some.batch, "rows": some.rows, "lag": some.lag(ends)}
            for some in streams
        ],
    }
