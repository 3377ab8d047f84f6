"""`fanlog dashboard`: finds the dashboard of a broker, and opens it in the browser. A key never
goes into the address: the page itself asks for a login."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import typer

from fanlog.cli.credentials import trusting
from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.session import DEFAULT_URL, Url
from fanlog.cli.settings import load_settings
from fanlog.cli.terminal import err
from fanlog.client.address import parse_url
from fanlog.client.credentials import split_login
from fanlog.config import Config
from fanlog.config_web import WEB_PORT
from fanlog.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from email.message import Message

EXAMPLE = "Example: [bold]fanlog dashboard --url https://broker.example.com:7422[/]"
_HTTP_SECONDS = 10.0
_ANSWER_BYTES_MAX = 256 * 1024
_LOCAL = ("127.0.0.1", "localhost", "::1")

HttpPort = Annotated[
    int | None,
    typer.Option(
        "--http-port",
        help=f"Port of the broker's web listener, if it is not {WEB_PORT}.",
        min=1,
        max=65535,
    ),
]
OnlyPrint = Annotated[bool, typer.Option("--print", help="Print the address, but open no browser.")]


class _HttpAnswer(NamedTuple):
    status: int
    content_type: str
    body: bytes


def dashboard(
    url: Url = DEFAULT_URL, http_port: HttpPort = None, only_print: OnlyPrint = False
) -> None:
    """Open the dashboard in your browser. --url is the address of the broker, or the http://
    address of its web listener."""
    site = _site_of(url, http_port)
    address = _find(site)
    print(address, flush=True)
    if _ask(site, "/v1/whoami").status == 401:
        _say("This broker asks for a login: a password, a key, or your OpenID provider.")
    if only_print:
        return
    if not webbrowser.open(address):
        _say("No browser could be started here: open the address in one.")


def _site_of(url: str, http_port: int | None) -> str:
    """The address of the web listener, without a path."""
    bare = split_login(url).url
    if bare.startswith(("http://", "https://")):
        parts = urlsplit(bare)
        host, secure, port = parts.hostname or "", parts.scheme == "https", parts.port
        port = http_port or port or (443 if secure else 80)
    else:
        address = parse_url(bare)
        near = _own_settings() if address.host in _LOCAL else Config()
        host, secure = address.host, address.tls or bool(near.tls.certificate_file)
        port = http_port or (near.web.port if near.web.port > 0 else WEB_PORT)
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{shown}:{port}"


def _own_settings() -> Config:
    """The settings of a broker that is started in this folder."""
    file = os.environ.get("FANLOG_CONFIG")
    try:
        return load_settings(Path(file) if file else None, {}).config
    except ConfigError:
        return Config()


def _find(site: str) -> str:
    """The address of the dashboard. It is at `/`, unless the broker serves the user's own page."""
    front = _ask(site, "/")
    said = _decoded(front)
    if said.get("name") == "fanlog":
        if "dashboard" in said:
            return f"{site}/"
        raise CommandError(
            f"{site} has no dashboard: it is an edge, or an older release. Give the address of the "
            "broker itself, with --url.",
            ExitCode.FAILED,
        )
    page = _ask(site, "/dashboard/")
    if page.status == 200 and page.content_type == "text/html" and b"Fanlog" in page.body:
        return f"{site}/dashboard/"
    raise CommandError(
        f"The server at {site} is not a Fanlog broker. Give the broker's address with --url, or "
        "the port of its web listener with --http-port.",
        ExitCode.FAILED,
    )


def _decoded(answer: _HttpAnswer) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _ask(site: str, path: str) -> _HttpAnswer:
    import urllib.error  # noqa: PLC0415 - only this needs it, and it takes a while
    import urllib.request  # noqa: PLC0415

    request = urllib.request.Request(site + path, headers={"Accept": "application/json"})
    context = trusting() if site.startswith("https://") else None
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_SECONDS, context=context) as answer:
            return _read(answer.status, answer.headers, answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as refused:
        return _read(refused.code, refused.headers, refused.read(_ANSWER_BYTES_MAX))
    except (OSError, ValueError) as fault:
        raise ConnectError(
            f"No web listener answers at {site} ({fault}). Start a broker with: fanlog serve. "
            "A running broker has shown its address at its start: give it with --url."
        ) from fault


def _read(status: int, headers: Message, body: bytes) -> _HttpAnswer:
    return _HttpAnswer(status, headers.get_content_type(), body)


def _say(sentence: str) -> None:
    """About the address, and no part of it."""
    err().print(sentence, highlight=False)
