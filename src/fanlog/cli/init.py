"""`fanlog init`: a few questions, and then a configuration that a broker can start with: a key to
log in with, certificates, ports and the data folder. With `--yes` it asks nothing.

Law: nothing is overwritten without --force, and nothing is written before all answers are checked.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fanlog.cli import toml_file
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.cli.listening import check_ports, is_loopback, native_url
from fanlog.cli.options import all_options
from fanlog.cli.settings import DEFAULT_FILE, GivenOption, Setting, Settings, check_document
from fanlog.cli.terminal import err, out, say_done
from fanlog.config import DEFAULT_DATA, DEFAULT_HOST, NATIVE_PORT, REDIS_PORT
from fanlog.config_web import WEB_PORT
from fanlog.errors import ConfigError, InvalidArgumentError
from fanlog.security.keys import make_key, maybe_parse

EXAMPLE = (
    "Examples: [bold]fanlog init[/], [bold]fanlog init --yes --auth key --tls dev --data data/[/]"
)
_HEAD = """\
# The configuration of a Fanlog broker, made by `fanlog init`. `fanlog config init -` prints every
# option with its meaning, and `fanlog config check` finds mistakes in this file.
"""
# A file that only its owner reads and writes.
_PRIVATE = 0o600


class Auth(StrEnum):
    """How clients log in."""

    KEY = "key"
    OWN = "own"
    NONE = "none"


class Tls(StrEnum):
    """Where certificates come from."""

    NONE = "none"
    DEV = "dev"
    OWN = "own"


@dataclass(slots=True, kw_only=True)
class SetupAnswers:
    """The content of the configuration."""

    data: str
    host: str
    port: int
    redis_port: int
    http_port: int
    auth: Auth
    key_file: Path
    tls: Tls
    certificate: str
    private_key: str


def init(
    file: Annotated[
        Path, typer.Argument(help="The configuration file to write.", metavar="FILE")
    ] = DEFAULT_FILE,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: use the flags, or the defaults.")
    ] = False,
    auth: Annotated[
        Auth | None,
        typer.Option("--auth", help="Logins: with a new key, with your own key, or none."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            help="File of the admin's key. Default: admin.key.",
            metavar="FILE",
        ),
    ] = None,
    tls: Annotated[
        Tls | None,
        typer.Option("--tls", help="No TLS, certificates for development, or your own."),
    ] = None,
    certificate: Annotated[
        str, typer.Option("--certificate", help="With --tls own: the PEM file.", metavar="FILE")
    ] = "",
    private_key: Annotated[
        str, typer.Option("--private-key", help="With --tls own: its key.", metavar="FILE")
    ] = "",
    data: Annotated[str | None, typer.Option("--data", help="Data folder.", metavar="DIR")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Native port.", min=0, max=65535, metavar="N")
    ] = None,
    redis_port: Annotated[
        int | None,
        typer.Option("--redis-port", help="-1: off.", min=-1, max=65535, metavar="N"),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="-1: off.", min=-1, max=65535, metavar="N")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
) -> None:
    """Set up a broker: ask a few questions, and write its configuration."""
    _check_new(file, force=force)
    asking = _Questions(ask=not yes)
    answers = SetupAnswers(
        data=asking.text("Folder for the data", data, DEFAULT_DATA),
        host=asking.text("Address to listen on (0.0.0.0: every network)", host, DEFAULT_HOST),
        port=asking.number("Port for Fanlog clients", port, NATIVE_PORT),
        redis_port=asking.number("Port for Redis clients (-1: none)", redis_port, REDIS_PORT),
        http_port=asking.number("Port for browsers and HTTP (-1: none)", http_port, WEB_PORT),
        auth=Auth(
            asking.choice(
                "Logins: a new `key`, your `own` key, or `none`", list(Auth), auth, Auth.KEY
            )
        ),
        key_file=key_file or file.parent / "admin.key",
        tls=Tls(
            asking.choice(
                "TLS: `none`, `dev` certificates, or your `own`", list(Tls), tls, Tls.NONE
            )
        ),
        certificate=certificate,
        private_key=private_key,
    )
    asking.files(answers, key_given=key_file is not None)
    _set_up(file, answers)


class _Questions:
    """Asks for each answer without a flag, or takes the default."""

    def __init__(self, *, ask: bool) -> None:
        self._ask = ask
        if ask and not sys.stdin.isatty():
            raise InvalidArgumentError(
                "This is not a terminal, so there is nobody to answer questions: give --yes, "
                "and flags for what should differ from the defaults."
            )

    def text(self, question: str, given: str | None, default: str) -> str:
        if given is not None or not self._ask:
            return default if given is None else given
        return str(typer.prompt(question, default=default, err=True)).strip()

    def number(self, question: str, given: int | None, default: int) -> int:
        if given is not None or not self._ask:
            return default if given is None else given
        while True:
            answer = int(typer.prompt(question, default=default, type=int, err=True))
            if -1 <= answer <= 65535:
                return answer
            err().print("A port is a number from 0 to 65535, or -1.")

    def choice(self, question: str, known: list[str], given: str | None, default: str) -> str:
        if given is not None or not self._ask:
            return default if given is None else given
        while True:
            answer = str(typer.prompt(question, default=str(default), err=True)).strip().lower()
            if answer in known:
                return answer
            err().print(f"Answer {', '.join(known[:-1])} or {known[-1]}.")

    def files(self, answers: SetupAnswers, *, key_given: bool) -> None:
        """Reads the rest of the answers, which depend on the first ones."""
        if answers.auth is Auth.OWN and not key_given:
            answers.key_file = Path(self.text("File that has the key", None, str(answers.key_file)))
        if answers.tls is Tls.OWN:
            answers.certificate = self.text(
                "PEM file with the certificate", answers.certificate or None, "broker.pem"
            )
            answers.private_key = self.text(
                "PEM file with its private key", answers.private_key or None, "broker.key"
            )


def _check_new(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        raise CommandError(f"{file} exists already: give --force to overwrite it.", ExitCode.EXISTS)
    if not file.absolute().parent.is_dir():
        raise CommandError(f"There is no folder {file.absolute().parent}.", ExitCode.NOT_FOUND)


def _set_up(file: Path, answers: SetupAnswers) -> None:
    _check(answers)
    made: list[str] = []
    if answers.auth is Auth.KEY:
        made += _make_key(answers.key_file)
    if answers.tls is Tls.DEV:
        made += _make_certificates(file, answers)
    text = _config(answers)
    toml_file.replace(file, text, mode=_PRIVATE)
    made.append(f"{file} contains the settings.")
    for sentence in made:
        say_done(sentence)
    _print_next(file, answers)


def _check(answers: SetupAnswers) -> None:
    """Checks that a broker would start with these answers."""
    if answers.auth is Auth.NONE and not is_loopback(answers.host):
        raise InvalidArgumentError(
            f"On {answers.host} other machines can reach the broker, so clients should log in: "
            "use --auth key, or the address 127.0.0.1."
        )
    if answers.auth is Auth.OWN:
        _check_key(answers.key_file)
    if answers.tls is Tls.OWN:
        for path in (answers.certificate, answers.private_key):
            if not Path(path).is_file():
                raise CommandError(f"There is no file {path or '(no name)'}.", ExitCode.NOT_FOUND)
    document = toml_file.parsed(_config(answers))
    found = {path: Setting(option, option.default) for path, option in all_options().items()}
    for given in check_document(document):
        if not isinstance(given, GivenOption):
            raise InvalidArgumentError(str(given))
        found[given.option.path] = Setting(given.option, given.value)
    try:
        check_ports(Settings(found).config)
    except ConfigError as fault:
        raise InvalidArgumentError(str(fault)) from None


def _check_key(file: Path) -> None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = reason(fault) if isinstance(fault, OSError) else "it is not text."
        raise CommandError(f"The key {file} can't be read: {why}", ExitCode.NOT_FOUND) from None
    if maybe_parse(text) is None:
        raise CommandError(
            f"{file} has no Fanlog key. Create one with: fanlog key generate --out FILE",
            ExitCode.BAD_DATA,
        )


def _make_key(file: Path) -> list[str]:
    """A new key, or the existing one: its owner must not be locked out."""
    if file.exists():
        _check_key(file)
        return [f"{file} exists already, and stays the admin's key."]
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(f"{make_key()}\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as fault:
        raise CommandError(f"{file} can't be written: {reason(fault)}", ExitCode.FAILED) from None
    return [f"{file} contains the admin's key. Keep it secret."]


def _make_certificates(file: Path, answers: SetupAnswers) -> list[str]:
    # It takes a while to import, and most commands have no use for it.
    from fanlog.security.dev_certificates import open_authority  # noqa: PLC0415

    folder = file.parent / "tls"
    authority = open_authority(folder)
    names = ["localhost", "127.0.0.1", "::1"]
    if answers.host not in names and answers.host not in ("0.0.0.0", "::", ""):
        names.append(answers.host)
    certificate, private_key = authority.issue("broker", names)
    answers.certificate, answers.private_key = str(certificate), str(private_key)
    return [f"{folder} has certificates for development. Clients trust {authority.ca_file}."]


def _config(answers: SetupAnswers) -> str:
    """The file."""
    sections: dict[str, dict[str, str | int | bool]] = {
        "": {"data": os.path.abspath(answers.data)},
        "listener": {"host": answers.host, "port": answers.port},
        "redis": {"host": answers.host, "port": answers.redis_port},
        "web": {"host": answers.host, "port": answers.http_port},
    }
    if answers.auth is not Auth.NONE:
        key_file = os.path.abspath(answers.key_file)
        sections["security"] = {"auth": True, "admin_key_file": key_file}
    if answers.tls is not Tls.NONE:
        sections["tls"] = {
            "certificate_file": os.path.abspath(answers.certificate or "broker.pem"),
            "private_key_file": os.path.abspath(answers.private_key or "broker.key"),
        }
    lines = [_HEAD]
    for section, options in sections.items():
        if section:
            lines.append(f"\n[{section}]")
        lines += [f"{name} = {toml_file.write_value(value)}" for name, value in options.items()]
    return "\n".join(lines) + "\n"


def _print_next(file: Path, answers: SetupAnswers) -> None:
    """The next commands to type."""
    host = DEFAULT_HOST if answers.host in ("0.0.0.0", "::", "") else answers.host
    url = native_url(host, answers.port)
    if answers.tls is not Tls.NONE:
        url = url.replace("fanlog://", "fanlogs://", 1)
    exports: list[str] = []
    if answers.port and url != native_url(DEFAULT_HOST, NATIVE_PORT):
        exports.append(f"FANLOG_URL={shlex.quote(url)}")
    if answers.auth is not Auth.NONE:
        exports.append(f"FANLOG_KEY_FILE={shlex.quote(os.path.abspath(answers.key_file))}")
    if answers.tls is Tls.DEV:
        ca_file = os.path.abspath(file.parent / "tls" / "ca.pem")
        exports.append(f"FANLOG_TLS_CA_FILE={shlex.quote(ca_file)}")
    console = out()
    console.print(Text("Start the broker:"))
    console.print(Text(f"  fanlog serve --config {shlex.quote(str(file))}", style="green"))
    console.print(Text("Then, in another terminal:"))
    if exports:
        console.print(Text(f"  export {' '.join(exports)}", style="green"))
    console.print(Text("  fanlog publish greetings hello", style="green"))
    console.file.flush()
