"""`fanlog config set|unset|reload|running`: the settings of a broker that runs."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
import typer
from rich.text import Text

from fanlog.cli.configuration import config_app
from fanlog.cli.options import SECRET, all_options, did_you_mean
from fanlog.cli.session import DEFAULT_URL, AsJson, Url, with_client
from fanlog.cli.terminal import err, new_table, out, print_json, printable, say_done, say_warning
from fanlog.client.aio import Client
from fanlog.errors import InvalidArgumentError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.settings import ConfigRequest, SettingsChanged, SettingsShown, SettingValue

T = TypeVar("T", bound=msgspec.Struct)

Temporary = Annotated[
    bool,
    typer.Option(
        "--temporary", help="Only until the next start: do not write the configuration file."
    ),
]


@config_app.command(
    "set",
    epilog="Example: [bold]fanlog config set listener.drain_seconds=30s audit.level=all[/]",
)
def set_options(
    assignments: Annotated[
        list[str], typer.Argument(help="Options and their values.", metavar="OPTION=VALUE...")
    ],
    *,
    temporary: Temporary = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change settings of a running broker, all or none of them, and write them to its file."""
    values: dict[str, SettingValue | None] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidArgumentError(f"{assignment!r} is not an assignment: write OPTION=VALUE.")
        _check(path)
        if all_options()[path].secret:
            raise InvalidArgumentError(
                f"{path} is a secret, and all users of this machine see it in the list of "
                "processes. Put it into a file, and set the option that names the file."
            )
        values[path] = value
    _change(url, ConfigRequest("change", values, temporary), as_json=as_json)


@config_app.command("unset", epilog="Example: [bold]fanlog config unset audit.level[/]")
def unset_options(
    options: Annotated[list[str], typer.Argument(help="The options.", metavar="OPTION...")],
    *,
    temporary: Temporary = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Set settings of a running broker back to their defaults."""
    for path in options:
        _check(path)
    request = ConfigRequest("change", dict.fromkeys(options), temporary)
    _change(url, request, as_json=as_json)


@config_app.command("reload", epilog="Example: [bold]fanlog config reload[/]")
def reload_file(*, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Make a running broker read its configuration file again, like SIGHUP."""
    _change(url, ConfigRequest("reload"), as_json=as_json)


@config_app.command("running", epilog="Example: [bold]fanlog config running[/]")
def running(*, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the settings of a running broker, and those that a restart would change."""
    shown = _ask(url, ConfigRequest(), SettingsShown)
    if as_json:
        print_json(shown.settings)
        return
    table = new_table("OPTION", "VALUE", "FROM", "CHANGE", "AFTER RESTART")
    for one in shown.settings:
        option = all_options().get(one.option)
        write = str if option is None else option.write
        style = "dim" if one.source == "default" else "bold"
        table.add_row(
            Text(one.option, style),
            Text(printable(write(one.value)), style),
            Text(printable(" ".join(filter(None, (one.source, one.where)))), style),
            Text("live" if one.live else "restart", "dim"),
            Text("" if one.pending is None else printable(write(one.pending)), "yellow"),
        )
    out().print(table)


def _check(path: str) -> None:
    if path not in all_options():
        raise InvalidArgumentError(
            f"There is no option {path!r}{did_you_mean(path, all_options())} "
            "List them with: fanlog config show"
        )


def _ask(url: str, request: ConfigRequest, kind: type[T]) -> T:
    async def work(client: Client) -> T:
        return decode(kind, await client.ask(FrameKind.CONFIG, request))

    return with_client(url, work)


def _change(url: str, request: ConfigRequest, *, as_json: bool) -> None:
    answer = _ask(url, request, SettingsChanged)
    if as_json:
        print_json(answer)
        return
    for one in answer.changed:
        option = all_options().get(one.option)
        write = str if option is None else option.write
        before, after = (
            value if value == SECRET else write(value) for value in (one.before, one.after)
        )
        when = "is now" if one.live else "will be"
        then = "was" if one.live else "is still"
        say_done(printable(f"{one.option} {when} {after}, {then} {before}"))
    waiting = [one.option for one in answer.changed if not one.live]
    if waiting:
        say_warning(f"Restart the broker to change {', '.join(waiting)}.")
    if not answer.changed:
        say_done("Nothing has changed: the broker already has these values.")
    elif answer.file:
        err().print(Text(printable(f"Written to {answer.file}"), "dim"))
