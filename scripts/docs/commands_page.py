"""The page of the command line, made from the Typer commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from typer.main import get_command

from fanlog.cli.app import app
from fanlog.cli.exit_codes import ExitCode
from scripts.docs.tables import code, page, table

_HEAD = """\
Every command of `fanlog`, made from the source. `fanlog COMMAND --help` prints the same.

Commands that ask a broker take `--url`, or the variable `FANLOG_URL`. Most have `--json`, for
scripts. Messages for people go to stderr, so that stdout holds nothing but the answer.

A broker that asks for a login wants one of these variables: `FANLOG_KEY_FILE` (a file with a key),
`FANLOG_KEY`, `FANLOG_TOKEN`, or `FANLOG_USER` with `FANLOG_PASSWORD_FILE` or `FANLOG_PASSWORD`. In
a systemd unit the credential `fanlog-key` does. No flag takes a secret."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command or a group of them, as Typer knows it. Only attributes are used: Typer's classes
    moved between its releases."""

    path: str
    inner: Any

    @property
    def help(self) -> str:
        return plain_markup(inspect.cleandoc(self.inner.help or ""))

    @property
    def commands(self) -> list[Command]:
        inner: dict[str, Any] = getattr(self.inner, "commands", {})
        return [
            Command(f"{self.path} {name}", command)
            for name, command in inner.items()
            if not command.hidden
        ]

    @property
    def arguments(self) -> list[Any]:
        return [one for one in self.inner.params if one.param_type_name == "argument"]

    @property
    def options(self) -> list[Any]:
        return [
            one
            for one in self.inner.params
            if one.param_type_name == "option"
            and one.name not in ("help", "install_completion", "show_completion")
        ]

    def walk(self) -> Iterator[Command]:
        """This one, and all below."""
        yield self
        for command in self.commands:
            yield from command.walk()


def root_command() -> Command:
    """`fanlog` itself."""
    return Command("fanlog", get_command(app))


def commands_page() -> str:
    """Every command with its arguments and options."""
    root = root_command()
    parts = [_HEAD, _overview(root), "## Options of every command", _options_table(root)]
    parts += ["## Exit codes", exit_codes_table()]
    for command in root.walk():
        if command is not root:
            parts += _command(command)
    return page("Command line", *parts)


def _overview(root: Command) -> str:
    leaves = [command for command in root.walk() if not command.commands]
    rows = ((f"[`{one.path}`](#{_anchor(one)})", one.help.split("\n\n")[0]) for one in leaves)
    return table(("command", "what it does"), rows)


def _anchor(command: Command) -> str:
    return command.path.replace(" ", "-")


def _command(command: Command) -> Iterator[str]:
    depth = "##" if command.path.count(" ") == 1 else "###"
    yield f"{depth} {command.path}"
    yield command.help
    if command.commands:
        return
    yield f"```text\n{_usage(command)}\n```"
    if command.arguments:
        rows = ((code(_metavar(one)), _help(one)) for one in command.arguments)
        yield table(("argument", "meaning"), rows)
    if command.options:
        yield _options_table(command)
    yield from _examples(command.inner.epilog or "")


def _usage(command: Command) -> str:
    words = [command.path]
    words += ["[OPTIONS]"] if command.options else []
    words += [_metavar(one) if one.required else f"[{_metavar(one)}]" for one in command.arguments]
    return " ".join(words)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _options_table(command: Command) -> str:
    rows = ((_flags(one), _help(one), code(_default(one))) for one in command.options)
    return table(("option", "meaning", "default"), rows)


def _flags(option: Any) -> str:
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {code(_metavar(option))}"


def _help(parameter: Any) -> str:
    text = plain_markup(parameter.help or "")
    choices = _choices(parameter)
    if choices:
        text += f" One of {', '.join(code(choice) for choice in choices)}."
    if parameter.envvar:
        text += f" Variable: `{parameter.envvar}`."
    return text


def _choices(parameter: Any) -> list[str]:
    """What an option of an enum takes, by its default: Typer's own types moved too."""
    kind = type(parameter.default)
    return [str(one.value) for one in kind] if issubclass(kind, Enum) else []


def _default(parameter: Any) -> str:
    value = parameter.default
    if isinstance(value, Enum):
        value = value.value
    if value is None or value is False or value in ("", ()) or callable(value):
        return ""
    return str(value)


def _examples(epilog: str) -> Iterator[str]:
    """`Example: [bold]fanlog health[/]` as a block."""
    found = re.findall(r"\[bold\](.+?)\[/(?:bold)?\]", epilog)
    if found:
        lines = "\n".join(line.replace("… ", "fanlog … ") for line in found)
        yield f"```sh\n{lines}\n```"


def plain_markup(text: str) -> str:
    """Text without the markup of Rich."""
    text = re.sub(r"\[/?(bold|dim|italic|cyan|yellow|red|green)?\]", "", text)
    return text.replace("\\[", "[")


def exit_codes_table() -> str:
    """The table in the docstring of `ExitCode`."""
    lines = inspect.cleandoc(ExitCode.__doc__ or "").splitlines()
    return "\n".join(line for line in lines if line.startswith("|")) + "\n"


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that an option of a command reads."""

    variable: str
    flag: str
    help: str


def parameters_with_variables() -> list[Variable]:
    """Every variable of commands, once."""
    found: dict[str, Variable] = {}
    for command in root_command().walk():
        for option in command.options:
            if option.envvar:
                found.setdefault(
                    str(option.envvar),
                    Variable(str(option.envvar), option.opts[0], plain_markup(option.help or "")),
                )
    return [found[name] for name in sorted(found)]
