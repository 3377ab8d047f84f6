"""How commands log in: from the environment, from files, or from systemd's credentials. Never from
a flag, which everybody on the machine sees in the list of processes."""

from __future__ import annotations

import os
import ssl
from typing import Any, cast

import typer

from fanlog.client.credentials import choose_credentials, split_login
from fanlog.client.tls import client_context, tls_from
from fanlog.config import ClientOptions
from fanlog.errors import InvalidArgumentError


def find_credentials(url: str) -> dict[str, str]:
    """The login and the trusted authorities, as options of a client. A login in the address has
    precedence."""
    return _login(url) | tls_from(os.environ)


def _login(url: str) -> dict[str, str]:
    if split_login(url).secrets:
        return {}
    given = split_login(os.environ.get("FANLOG_URL", ""))
    # The same address, where a command has left out the secret.
    same = bool(given.secrets) and given.url == url
    return given.secrets if same else choose_credentials(os.environ)


def trusting() -> ssl.SSLContext:
    """TLS for connections other than a client's. They trust the same authorities as the
    commands."""
    return client_context(ClientOptions(**cast("dict[str, Any]", tls_from(os.environ))))


def refuse_secret(context: typer.Context, parameter: typer.CallbackParam, url: str) -> str:
    """`--url` takes no secret: the list of processes shows it, and the shell's history keeps it."""
    given = context.get_parameter_source(parameter.name or "")
    if given is not None and given.name == "COMMANDLINE" and split_login(url).secrets:
        raise InvalidArgumentError(
            "--url must not contain a password or a key: other users of this machine see it in "
            "the list of processes. Put the key into FANLOG_KEY, or into a file and the file's "
            "path into FANLOG_KEY_FILE, or put the whole address into FANLOG_URL."
        )
    return url
