"""All commands together. Only this module turns their errors into a sentence on stderr and an exit
code. Law: a command imports no other one; to import and build all of them takes half a second."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import typer
from typer.core import TyperGroup
from typer.main import get_command

from fanlog.cli.exit_codes import ExitCode, exit_code_of, exit_codes_help
from fanlog.cli.logs import LogLevel, set_up_logging
from fanlog.cli.terminal import err, say_error
from fanlog.errors import FanlogError
from fanlog.release import VERSION


class _CommandSource(NamedTuple):
    """Where a command is: its module in this package, its function there, and the name of the
    example in its help. A group of commands is a `typer.Typer`, and has no example."""

    module: str
    name: str
    example: str = ""


# In the order in which the help shows them.
_COMMANDS = {
    "init": _CommandSource("init", "init", "EXAMPLE"),
    "serve": _CommandSource("serve", "serve", "EXAMPLE"),
    "edge": _CommandSource("edge", "edge", "EXAMPLE"),
    "dashboard": _CommandSource("dashboard", "dashboard", "EXAMPLE"),
    "publish": _CommandSource("publish", "publish", "EXAMPLE"),
    "tail": _CommandSource("tail", "tail", "EXAMPLE"),
    "generate": _CommandSource("generate", "generate", "EXAMPLE"),
    "export": _CommandSource("export", "export", "EXAMPLE"),
    "import": _CommandSource("importing", "import_", "EXAMPLE"),
    "may": _CommandSource("users", "may", "MAY_EXAMPLE"),
    "health": _CommandSource("health", "health", "EXAMPLE"),
    "traces": _CommandSource("traces", "traces", "EXAMPLE"),
    "top": _CommandSource("top", "top", "EXAMPLE"),
    "backup": _CommandSource("backup", "backup", "BACKUP_EXAMPLE"),
    "restore": _CommandSource("backup", "restore", "RESTORE_EXAMPLE"),
    "verify": _CommandSource("verify", "verify", "EXAMPLE"),
    "topic": _CommandSource("topics", "topic_app"),
    "group": _CommandSource("groups", "group_app"),
    "schedule": _CommandSource("schedule", "schedule_app"),
    "dead": _CommandSource("dead", "dead_app"),
    "key": _CommandSource("keys", "key_app"),
    "user": _CommandSource("users", "user_app"),
    "cluster": _CommandSource("cluster", "cluster_app"),
    "connections": _CommandSource("connections", "connections_app"),
    "audit": _CommandSource("audit", "audit_app"),
    "config": _CommandSource("reconfigure", "config_app"),
    "tls": _CommandSource("tls", "tls_app"),
    "pipeline": _CommandSource("pipeline", "pipeline_app"),
    "bench": _CommandSource("bench", "bench_app"),
}


class _Commands(MutableMapping[str, Any]):
    """The commands by name. Each is imported and built when it is first asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(name, _COMMANDS[name])
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in _COMMANDS


def _build(name: str, source: _CommandSource) -> Any:
    module = import_module(f"fanlog.cli.{source.module}")
    found = getattr(module, source.name)
    alone = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    alone.callback()(lambda: None)  # so that it is a group, and the one command has its name
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, epilog=getattr(module, source.example))(found)
    built: Any = get_command(alone)
    return built.commands[name]


class _Root(TyperGroup):
    """`fanlog` itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    name="fanlog",
    cls=_Root,
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


@runtime_checkable
class _WrittenWrongly(Protocol):
    """Recognizes a usage error of Typer by its methods, because its class moved between Typer's
    releases."""

    exit_code: int

    def format_message(self) -> str: ...


# Building a command takes a while.
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
            return ExitCode.USAGE  # no command was given, and the help has been shown
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
