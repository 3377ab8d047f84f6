"""`fanlog pipeline ...`: list, copy, run and watch the ready-made Spark pipelines. Law: a run is a
process with its own folder, and watching a run only reads that folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fanlog.cli.credentials import refuse_secret
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.pipeline_display import Watching, display, find_bounds, number
from fanlog.cli.pipeline_reports import RunReports
from fanlog.cli.session import DEFAULT_URL, AsJson, with_client
from fanlog.cli.terminal import (
    err,
    new_table,
    on_terminal,
    out,
    print_json,
    printable,
    say_done,
    say_warning,
)
from fanlog.client.aio import Client
from fanlog.client.credentials import split_login
from fanlog.errors import FanlogError
from fanlog.spark import pipelines
from fanlog.spark.pipelines.kinds import wanted_topics
from fanlog.spark.pipelines.progress import Ends, look
from fanlog.spark.pipelines.runs import (
    RECORD,
    STOPS,
    LastRun,
    RunningPipeline,
    check_ready,
    condition,
    last_run,
)

pipeline_app = typer.Typer(
    help="List, copy, run and watch ready-made Spark pipelines.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

RUNS = Path("fanlog-pipelines")
_LOOK_SECONDS = 1.0
_STYLES = {
    "running": "green",
    "done": "dim",
    "stopped": "yellow",
    "failed": "bold red",
    "killed": "yellow",
}

Name = Annotated[
    str, typer.Argument(help="Name of a pipeline, or a folder made by init.", metavar="NAME")
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Address of the broker.",
        metavar="URL",
        envvar="FANLOG_URL",
        callback=refuse_secret,
    ),
]


@pipeline_app.command("list", epilog="Example: [bold]fanlog pipeline list[/]")
def list_pipelines(as_json: AsJson = False) -> None:
    """List pipelines with their options."""
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
        Path | None,
        typer.Argument(help="Target folder. Default: the name of the pipeline.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Copy a pipeline into a folder, to change it."""
    pipeline = pipelines.find(name)
    target = folder or Path(pipeline.name)
    pipelines.copy(pipeline, target)
    # With the dot it is no ready-made pipeline, whatever it is called.
    named = target if target.is_absolute() else f"./{target}"
    say_done(f"{pipeline.name} is in {target}: run it with `fanlog pipeline run {named}`.")


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
        typer.Option("--state", help="Folder for checkpoints and progress.", metavar="FOLDER"),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Address of the Spark master.", metavar="MASTER")
    ] = "local[*]",
    every: Annotated[
        float,
        typer.Option("--every", min=0, help="Run again after this many seconds, until Ctrl-C."),
    ] = 0.0,
    url: UrlOption = None,
) -> None:
    """Run a pipeline, and show its progress."""
    pipeline = pipelines.find(name)
    # Without its secrets, which would be written down: each process reads its own.
    given = ({"url": split_login(url).url} if url else {}) | pipelines.parse_options(option or [])
    # A copy has the name of its pipeline, but a state of its own.
    folder = state or RUNS / pipeline.folder.name
    options = pipeline.settle(_absolute(given, pipeline), folder)
    try:
        with _terminated_as_interrupted():
            _run_once(pipeline, options, folder, master)
            while every:
                time.sleep(every)
                try:
                    _run_once(pipeline, options, folder, master)
                except FanlogError as fault:
                    # The run worked before, so a restart of the broker is no reason to give up.
                    say_warning(f"{fault.message} The next run starts in {every:g} s.")
    except KeyboardInterrupt:
        err().print(f"{pipeline.name} is stopped. Run it again to resume.")
        raise


def _absolute(given: dict[str, str], pipeline: pipelines.Pipeline) -> dict[str, str]:
    """Options with whole paths: a run has a folder of its own, which they must not depend on."""
    folders = {
        name: str(Path(value).absolute())
        for name, some in pipeline.options.items()
        if some.kind == "folder" and (value := given.get(name, some.default))
    }
    return given | folders


def _check_topics(pipeline: pipelines.Pipeline, options: dict[str, str]) -> None:
    """Checks that the broker and the topics exist: Spark takes half a minute to report that."""
    topics = wanted_topics(pipeline.options, options)

    async def work(client: Client) -> None:
        for topic in topics:
            await client.describe_topic(topic)

    if "url" in options:
        with_client(options["url"], work)


def _run_once(
    pipeline: pipelines.Pipeline, options: dict[str, str], folder: Path, master: str
) -> None:
    environment = dict(os.environ)
    if master.startswith("local"):
        # A laptop's name may lead to an address that is not there.
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    check_ready(pipeline, folder)
    _check_topics(pipeline, options)
    watching = Watching(options.get("url", DEFAULT_URL), folder)
    running = RunningPipeline(pipeline, options, folder, master, environment)
    reports = RunReports(options.get("url", DEFAULT_URL), running, watching)
    reports.send()
    try:
        summary = watch(running, watching, reports.send_now_and_then)
    except BaseException:
        _stop(running)
        reports.end()
        raise
    if running.run.exit_code:
        why = running.why()
        reports.end(why=why)
        raise CommandError(why, ExitCode.FAILED)
    reports.end(summary=f"{pipeline.name} is done{summary}.")
    report = options.get("report")
    where = f" Open {Path(report, 'report.html')}." if report else ""
    say_done(f"{pipeline.name} is done{summary}.{where}")


def watch(
    running: RunningPipeline, watching: Watching, report: Callable[[], None] = lambda: None
) -> str:
    """Shows a run until it ends, and returns its summary. If showing it fails, the run
    continues."""
    try:
        with display(watching) as show:
            while not running.wait(_LOOK_SECONDS):
                show(running.last_event())
                report()
            show(running.last_event())
        return watching.summary()
    except Exception as fault:  # noqa: BLE001 - looking is one thing, and the run another
        with suppress(OSError):  # nobody reads it any more
            say_warning(f"The progress can't be shown, but the run continues: {fault!r}.")
    while not running.wait(_LOOK_SECONDS):
        pass
    return ""


def _stop(running: RunningPipeline) -> None:
    try:
        running.stop()
    except KeyboardInterrupt:  # typed again: somebody is in a hurry
        running.stop(STOPS[-1:])


@contextmanager
def _terminated_as_interrupted() -> Generator[None]:
    """A service manager sends SIGTERM where a person types Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@pipeline_app.command(epilog="Example: [bold]fanlog pipeline status[/]")
def status(
    folder: Annotated[
        Path, typer.Argument(help="A state folder, or a folder of state folders.", metavar="FOLDER")
    ] = RUNS,
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Address of the broker. Default: the one that each run used.",
            metavar="URL",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the last run of each pipeline, its progress and its lag."""
    faults: dict[str, None] = {}
    if folder != RUNS and not folder.is_dir():
        raise CommandError(
            f"There is no folder {folder}. Name the state folder of a run (--state of pipeline "
            "run), "
            "or a folder that contains state folders.",
            ExitCode.NOT_FOUND,
        )
    states = [path.parent for path in (folder / RECORD, *sorted(folder.glob(f"*/{RECORD}")))]
    found = [(state, some) for state in states if (some := last_run(state))]
    if as_json:
        print_json(
            [_document(state, some, _ends(state, some, url, faults)) for state, some in found]
        )
        _say_unknown(faults)
        return
    if not found and on_terminal():
        out().print(f"No pipeline has run in {folder}.", style="dim")
        return
    table = new_table("PIPELINE", "STATE", "STARTED", "STREAM", ">BATCH", ">OFFSETS", ">LAG")
    for state, some in found:
        _add_rows(table, state, some, _ends(state, some, url, faults))
    out().print(table)
    _say_unknown(faults)


def _ends(state: Path, run: LastRun, url: str | None, faults: dict[str, None]) -> Ends:
    """The ends of the topics that a run reads. If they are unknown, `faults` gets the reason."""
    broker = url or run.options.get("url", DEFAULT_URL)
    return find_bounds(broker, look(state), lambda fault: faults.update({str(fault): None})).ends


def _say_unknown(faults: dict[str, None]) -> None:
    for fault in faults:
        say_warning(f"The lag is unknown: {fault}")


def _add_rows(table: Table, state: Path, run: LastRun, ends: Ends) -> None:
    streams = look(state)
    now = condition(state, run)
    head = (
        Text(printable(run.pipeline), style="bold cyan"),
        Text(now, style=_STYLES[now]),
        run.started.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
    )
    if not streams:
        table.add_row(*head, "", "", "", "")
    for i, some in enumerate(streams):
        figures = (f"{some.batch:,}", f"{some.rows:,}", number(some.lag(ends)))
        table.add_row(*(head if i == 0 else ("", "", "")), printable(some.name), *figures)


def _document(state: Path, run: LastRun, ends: Ends) -> dict[str, object]:
    streams = look(state)
    return {
        "pipeline": run.pipeline,
        "folder": str(state),
        "state": condition(state, run),
        "started": run.started,
        "ended": run.ended,
        "exit_code": run.exit_code,
        "options": run.options,
        "streams": [
            {"name": some.name, "batch": some.batch, "rows": some.rows, "lag": some.lag(ends)}
            for some in streams
        ],
    }
