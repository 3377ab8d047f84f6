"""`fanlog config ...`: write a configuration file, show the settings in effect and their sources,
and check a file."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.cli.options import Option, all_options
from fanlog.cli.serve import ConfigFile, DataFolder, Host, Port, RedisPort
from fanlog.cli.session import AsJson
from fanlog.cli.settings import DEFAULT_FILE, check_document, load_settings, read_document
from fanlog.cli.terminal import (
    err,
    new_table,
    on_terminal,
    out,
    print_json,
    say_done,
    say_error,
    say_warning,
)
from fanlog.errors import ConfigError

config_app = typer.Typer(
    help="Write, show and check the configuration.", no_args_is_help=True, rich_markup_mode="rich"
)

_HEAD = """\
# The configuration of a Fanlog broker: every option with its default. Remove the # before an
# option to set it. Sizes may be numbers or texts such as "64KiB" or "128MB", durations numbers of
# seconds or texts such as "500ms" or "7d".
#
# The environment has precedence over this file (FANLOG_LISTENER_PORT=7420 is listener.port), and
# the command line over both. Check this file with: fanlog config check {file}"""


@config_app.command(epilog="Example: [bold]fanlog config init fanlog.toml[/]")
def init(
    file: Annotated[
        Path, typer.Argument(help="File to write. - prints it.", metavar="FILE")
    ] = DEFAULT_FILE,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
) -> None:
    """Write a file with every setting, its default and its meaning."""
    text = commented_toml(DEFAULT_FILE if str(file) == "-" else file)
    if str(file) == "-":
        print(text, end="")
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise CommandError(
            f"{file} exists already: give --force to overwrite it.", ExitCode.EXISTS
        ) from None
    except OSError as fault:
        raise ConfigError(f"{file} can't be written: {reason(fault)}") from fault
    say_done(f"{file} has every option with its default; start with: fanlog serve --config {file}")


def commented_toml(file: Path) -> str:
    """Every option, commented out."""
    lines = [_HEAD.format(file=file)]
    by_section = itertools.groupby(all_options().values(), key=lambda option: option.section)
    for section, options in by_section:
        if section:
            lines.append(f"\n[{section}]")
        lines += [_commented(option) for option in options]
    return "\n".join(lines) + "\n"


def _commented(option: Option) -> str:
    reason = option.reason or option.name.replace("_", " ")
    allowed = "" if option.kind in ("text", "switch") else f" Allowed: {option.allowed}."
    words = textwrap.wrap(reason + allowed, 98, initial_indent="# ", subsequent_indent="# ")
    return "\n".join(["", *words, f"# {option.name} = {option.write_toml(option.default)}"])


@config_app.command(epilog="Example: [bold]FANLOG_LISTENER_PORT=7500 fanlog config show[/]")
def show(
    *,
    data: DataFolder = None,
    host: Host = None,
    port: Port = None,
    redis_port: RedisPort = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the settings in effect, and where each value comes from.

    CHANGE says whether a running broker can take another value (live), or needs a restart.
    """
    flags = {"data": data, "listener.host": host, "listener.port": port, "redis.port": redis_port}
    settings = load_settings(config, flags)
    shown = settings.by_path.values()
    for remark in settings.remarks:
        say_warning(remark)
    if as_json:
        print_json(
            [
                {
                    "option": s.option.path,
                    "value": s.option.show(s.value),
                    "source": s.source,
                    "where": s.where,
                    "live": s.option.live,
                }
                for s in shown
            ]
        )
        return
    table = new_table("OPTION", "VALUE", "FROM", "CHANGE")
    for setting in shown:
        origin = " ".join(filter(None, (setting.source, setting.where)))
        style = "dim" if setting.source == "default" else "bold"
        table.add_row(
            Text(setting.option.path, style),
            Text(setting.option.write(setting.option.show(setting.value)), style),
            Text(origin, style),
            Text("live" if setting.option.live else "restart", "dim"),
        )
    out().print(table)
    if on_terminal() and settings.file is None:
        err().print(
            f"There is no {DEFAULT_FILE} in this folder. Create it with: fanlog config init",
            style="dim",
        )


@config_app.command(epilog="Example: [bold]fanlog config check fanlog.toml[/]")
def check(
    file: Annotated[Path, typer.Argument(help="The file to check.", metavar="FILE")] = DEFAULT_FILE,
) -> None:
    """Check a configuration file, and list its mistakes."""
    checked = list(check_document(read_document(file)))
    faults = [fault for fault in checked if isinstance(fault, ConfigError)]
    for fault in faults:
        say_error(f"{file}: {fault}")
    if faults:
        raise typer.Exit(ExitCode.BAD_DATA)
    say_done(f"{file} is valid. It sets {len(checked)} of {len(all_options())} options.")
