"""`fanlog tls ...`: certificates for development, and a check of a server's certificate."""

from __future__ import annotations

import datetime as dt
import shlex
import socket
import ssl
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer
from rich.text import Text

from fanlog.cli.exit_codes import ExitCode
from fanlog.cli.session import DEFAULT_URL, AsJson
from fanlog.cli.terminal import new_table, out, print_json, printable, say_done, say_warning
from fanlog.client.address import Address, unreachable
from fanlog.client.tls import client_context, explain, no_tls
from fanlog.config import NATIVE_PORT, REDIS_PORT, ClientOptions
from fanlog.config_web import WEB_PORT
from fanlog.errors import ConnectError, InvalidArgumentError
from fanlog.security.certificates import Certificate, read_der_certificate

tls_app = typer.Typer(
    help="Create certificates for development, or check the certificate of a server.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_PORTS = {
    "fanlogs": NATIVE_PORT,
    "fanlog": NATIVE_PORT,
    "rediss": REDIS_PORT,
    "https": WEB_PORT,
    "tls": NATIVE_PORT,
}
_WARN_DAYS = 14

Folder = Annotated[
    Path,
    typer.Option("--dir", help="Folder for the files. It is created if needed.", metavar="DIR"),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name", help="Host name or address of the broker. May be repeated.", metavar="NAME"
    ),
]
Clients = Annotated[
    list[str] | None,
    typer.Option(
        "--client", help="Also create a client certificate for this user.", metavar="USER"
    ),
]
Days = Annotated[
    float, typer.Option("--days", help="How long the certificates are valid.", min=0.01, max=3650)
]


@tls_app.command(
    epilog="Example: [bold]fanlog tls dev --dir tls --name broker.local --client billing[/]"
)
def dev(
    folder: Folder = Path("fanlog-tls"),
    name: Names = None,
    client: Clients = None,
    days: Days = 90.0,
) -> None:
    """Create an authority and certificates for development, and print how to use them. If the
    folder already has an authority, the command uses it and renews the certificates."""
    # It takes a while to import.
    from fanlog.security.dev_certificates import open_authority  # noqa: PLC0415

    for user in client or ():
        if not user or "/" in user or user.startswith("."):
            raise InvalidArgumentError(f"{user!r} can't be a file name: choose another.")
    known = ["localhost", "127.0.0.1", "::1"]
    names = [*(n for n in name or () if n not in known), *known]
    try:
        authority = open_authority(folder)
        certificate, key = authority.issue("broker", names, days=days)
        shown = [authority.issue(f"client-{u}", [u], client=True, days=days) for u in client or ()]
    except OSError as fault:
        raise InvalidArgumentError(
            f"{fault.filename or folder} can't be written ({fault.strerror}): give another --dir."
        ) from fault
    say_done(f"The certificate of the broker is for {', '.join(names)}, and valid {days:g} days.")
    say_warning(
        f"{folder / 'ca.key'} can make a certificate for any name: keep it secret, "
        "and use it for development only."
    )
    _print_next(folder, certificate, key, shown)


def _print_next(folder: Path, certificate: Path, key: Path, shown: list[tuple[Path, Path]]) -> None:
    ca = shlex.quote(str(folder / "ca.pem"))
    lines = [
        Text("Start a broker with them:"),
        _command(
            f"FANLOG_TLS_CERTIFICATE_FILE={shlex.quote(str(certificate))} "
            f"FANLOG_TLS_PRIVATE_KEY_FILE={shlex.quote(str(key))} fanlog serve"
        ),
        Text("Use it, in another terminal:"),
        _command(f"export FANLOG_URL=fanlogs://localhost FANLOG_TLS_CA_FILE={ca}"),
        _command("fanlog publish greetings hello"),
        _command(f"redis-cli --tls --cacert {ca} -p {REDIS_PORT} ping"),
        _command(f"curl --cacert {ca} https://localhost:{WEB_PORT}/v1/topics"),
    ]
    if shown:
        lines.append(
            Text(
                "To let clients log in with their certificates, start the broker with this as well:"
            )
        )
        lines.append(_command(f"FANLOG_TLS_CLIENT_CA_FILE={ca}"))
    for path, its_key in shown:
        lines.append(
            _command(
                f"export FANLOG_CLIENT_CERTIFICATE_FILE={shlex.quote(str(path))} "
                f"FANLOG_CLIENT_KEY_FILE={shlex.quote(str(its_key))}"
            )
        )
    for line in lines:
        out().print(line, soft_wrap=True)


def _command(text: str) -> Text:
    return Text(f"  {text}", style="green")


class Presented(msgspec.Struct, frozen=True, kw_only=True):
    """What a server presents."""

    address: str
    protocol: str
    cipher: str
    trusted: bool
    why_not: str
    certificate: Certificate


@tls_app.command(epilog="Example: [bold]fanlog tls check https://broker.example.com:7422[/]")
def check(
    url: Annotated[str, typer.Argument(help="Address of the server.", metavar="URL")] = "",
    ca_file: Annotated[
        str,
        typer.Option(
            "--ca-file",
            help="PEM file with the authorities to trust. Default: those of this machine.",
            metavar="FILE",
            envvar="FANLOG_TLS_CA_FILE",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show a server's certificate, whether a client would trust it, and when it expires. The exit
    code is 1 if a client would refuse it, or if it expires within 14 days."""
    address = _address(url or DEFAULT_URL)
    presented = _look(address, ca_file)
    days = presented.certificate.days_left(time.time())
    if as_json:
        print_json(msgspec.to_builtins(presented) | {"days_left": round(days, 2)})
    else:
        _print_presented(presented, days)
    if not presented.trusted or days < _WARN_DAYS:
        raise typer.Exit(ExitCode.FAILED)


def _address(url: str) -> Address:
    given = url if "://" in url else f"tls://{url}"
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError as fault:
        raise InvalidArgumentError(f"{url!r} is not an address: {fault}.") from fault
    if not host or parts.scheme not in _PORTS or parts.username or parts.password:
        raise InvalidArgumentError(
            f"{printable(url.rpartition('@')[2])!r} is not an address of a server with TLS: write "
            "fanlogs://host:port, rediss://host:port or https://host:port."
        )
    return Address(host, port or _PORTS[parts.scheme], tls=True)


def _look(address: Address, ca_file: str) -> Presented:
    """Connects twice: once to see the certificates, and once as a client that has to trust them."""
    lenient = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lenient.check_hostname = False
    lenient.verify_mode = ssl.CERT_NONE
    protocol, cipher, der = _shake(address, lenient)
    why_not = ""
    try:
        _shake(address, client_context(ClientOptions(tls_ca_file=ca_file)))
    except ConnectError as fault:
        cause = fault.__cause__
        why_not = explain(cause) if isinstance(cause, ssl.SSLError) else str(fault)
    return Presented(
        address=str(address),
        protocol=protocol,
        cipher=cipher,
        trusted=not why_not,
        why_not=why_not,
        certificate=read_der_certificate(der),
    )


def _shake(address: Address, context: ssl.SSLContext) -> tuple[str, str, bytes]:
    try:
        with (
            socket.create_connection((address.host, address.port), 10.0) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as sock,
        ):
            cipher = sock.cipher()
            der = sock.getpeercert(binary_form=True) or b""
            return sock.version() or "", cipher[0] if cipher else "", der
    except ssl.SSLError as fault:
        raise no_tls(address, fault) from fault
    except OSError as fault:
        raise unreachable(address, fault) from fault


def _print_presented(presented: Presented, days: float) -> None:
    certificate = presented.certificate
    well = presented.trusted and days >= _WARN_DAYS
    state = "trusted" if presented.trusted else "refused"
    style = "bold green" if well else "bold red"
    out().print(Text.assemble((state, style), f"  {presented.address}"))
    table = new_table("", "")
    table.show_header = False
    rows: list[tuple[str, Any]] = [
        ("protocol", f"{presented.protocol}, {presented.cipher}"),
        ("subject", certificate.subject),
        ("names", ", ".join(certificate.names)),
        ("issuer", certificate.issuer),
        ("valid from", _moment(certificate.not_before)),
        ("valid until", f"{_moment(certificate.not_after)} ({days:.1f} days)"),
    ]
    for name, value in rows:
        table.add_row(name, printable(str(value)))
    out().print(table)
    if not presented.trusted:
        out().print(Text(f"! {presented.why_not}", style="red"))
    elif not well:
        out().print(Text("! It expires soon: renew it.", style="red"))


def _moment(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
