"""All commands together. Only this module turns their errors into a sentence on stderr and an exit
code."""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import Annotated, Protocol, runtime_checkable

import typer
from typer.main import get_command

from fanlog.cli import (
    backup,
    dashboard,
    edge,
    export,
    generate,
    health,
    importing,
    init,
    publish,
    serve,
    tail,
    top,
    traces,
    verify,
)
from fanlog.cli.audit import audit_app
from fanlog.cli.bench import bench_app
from fanlog.cli.cluster import cluster_app
from fanlog.cli.connections import connections_app
from fanlog.cli.dead import dead_app
from fanlog.cli.exit_codes import ExitCode, exit_code_of, exit_codes_help
from fanlog.cli.groups import group_app
from fanlog.cli.keys import key_app
from fanlog.cli.logs import LogLevel, set_up_logging
from fanlog.cli.pipeline import pipeline_app
from fanlog.cli.reconfigure import config_app
from fanlog.cli.schedule import schedule_app
from fanlog.cli.terminal import err, say_error
from fanlog.cli.tls import tls_app
from fanlog.cli.topics import topic_app
from fanlog.cli.users import MAY_EXAMPLE, may, user_app
from fanlog.errors import FanlogError
from fanlog.release import VERSION

app = typer.Typer(
    name="fanlog",
    help="Publish once, and any number of readers follow.",
    epilog=f"Exit codes:\n{exit_codes_help()}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fanlog {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show debug logs, and the traceback of an error.", envvar="FANLOG_DEBUG"
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Publish once, and any number of readers follow."""
    if debug:
        set_up_logging(LogLevel.DEBUG)


app.command(epilog=init.EXAMPLE)(init.init)
app.command(epilog=serve.EXAMPLE)(serve.serve)
app.command(epilog=edge.EXAMPLE)(edge.edge)
app.command(epilog=dashboard.EXAMPLE)(dashboard.dashboard)
app.command(epilog=publish.EXAMPLE)(publish.publish)
app.command(epilog=tail.EXAMPLE)(tail.tail)
app.command(epilog=generate.EXAMPLE)(generate.generate)
app.command(epilog=export.EXAMPLE)(export.export)
app.command("import", epilog=importing.EXAMPLE)(importing.import_)
app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(schedule_app, name="schedule")
app.add_typer(dead_app, name="dead")
app.add_typer(key_app, name="key")
app.add_typer(user_app, name="user")
app.command(epilog=MAY_EXAMPLE)(may)
app.command(epilog=health.EXAMPLE)(health.health)
app.command(epilog=traces.EXAMPLE)(traces.traces)
app.command(epilog=top.EXAMPLE)(top.top)
app.add_typer(cluster_app, name="cluster")
app.add_typer(connections_app, name="connections")
app.command(epilog=backup.BACKUP_EXAMPLE)(backup.backup)
app.command(epilog=backup.RESTORE_EXAMPLE)(backup.restore)
app.command(epilog=verify.EXAMPLE)(verify.verify)
app.add_typer(audit_app, name="audit")
app.add_typer(config_app, name="config")
app.add_typer(tls_app, name="tls")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(bench_app, name="bench")


@runtime_checkable
class _WrittenWrongly(Protocol):
    """Recognizes a usage error of Typer by its methods, because its class moved between Typer's
    releases."""

    exit_code: int

    def format_message(self) -> str: ...


# Building all commands takes a while.
_command_of = cache(get_command)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        result = _command_of(app).main(given, prog_name="fanlog", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except Exception as fault:  # noqa: BLE001 - the outermost edge: a sentence, not a traceback
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            err().print_exception()
        return _explain(fault)
    return result if isinstance(result, int) else ExitCode.OK


# What Typer's library says of values, and what people understand.
_PLAIN_WORDS = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "give a whole number",
    "Input should be a valid number, unable to parse string as a number": "give a number",
}


def _where_to_look(said: str, fault: Exception) -> str:
    """The help that shows the commands, or the arguments of a command."""
    context: object = getattr(fault, "ctx", None)
    path: str = getattr(context, "command_path", "fanlog")
    if said.startswith("No such command") and "Did you mean" not in said:
        return f" See which there are with: {path} --help"
    if said.startswith("Missing "):
        return f" See an example with: {path} --help"
    return ""


def _explain(fault: Exception) -> ExitCode:
    if isinstance(fault, FanlogError):
        say_error(fault.message)
        return exit_code_of(fault)
    if isinstance(fault, _WrittenWrongly):
        if not fault.format_message():
            return ExitCode.USAGE  # nothing was asked for, and the help has been shown
        said = fault.format_message()
        for theirs, ours in _PLAIN_WORDS.items():
            said = said.replace(theirs, ours)
        said = said if said.endswith((".", "?")) else f"{said}."
        say_error(f"{said}{_where_to_look(said, fault)}")
        return ExitCode.USAGE
    if isinstance(fault, MemoryError):
        say_error(
            "There is not enough memory for this. Free some, or lower the sizes in the settings: "
            "fanlog config show"
        )
        return ExitCode.FAILED
    sentence = f"{type(fault).__name__}: {fault}. This is a bug in fanlog"
    say_error(f"{sentence}: run `fanlog --debug ...` to see where it is.")
    return ExitCode.FAILED
