"""The credentials of a client, read again for every connection: a key or password may be in a file
that is replaced, and a token may come from a function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from fanlog.config import ClientOptions
from fanlog.errors import ConfigError, ConnectError, FanlogError, InvalidArgumentError
from fanlog.identity import Login

_KEY_PREFIX = "fl_"
# A secret is a line. A file that is much longer is another one.
_FILE_BYTES_MAX = 64 * 1024
TokenSource = Callable[[], str | Awaitable[str]]


# Variables of commands and of Spark's processes, and the client's options that they are.
VARIABLES = {
    "FANLOG_KEY": "key",
    "FANLOG_KEY_FILE": "key_file",
    "FANLOG_TOKEN": "token",
    "FANLOG_USER": "user",
    "FANLOG_PASSWORD": "password",
    "FANLOG_PASSWORD_FILE": "password_file",
}
# The name of systemd's credential: LoadCredential=fanlog-key:/etc/fanlog/key
_CREDENTIAL = "fanlog-key"
_WAYS = (("key",), ("key_file",), ("token",), ("user", "password", "password_file"))


class Located(NamedTuple):
    """An address without its secrets, and the secrets as options."""

    url: str
    secrets: dict[str, str]


def split_login(url: str) -> Located:
    """Takes the login out of `fanlog://user:password@host` or `fanlog://:KEY@host`."""
    given = url if "://" in url else f"fanlog://{url}"
    if "@" not in given:
        return Located(url, {})
    try:
        parts = urlsplit(given)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
    except ValueError:
        # Without what was given: it may be a password.
        raise InvalidArgumentError(
            "The address is not valid. Write it as fanlog://host:port, and give the key as an "
            "option: fanlog.connect(url, key=...)."
        ) from None
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if not user and password:
        return Located(bare, {"key": password})
    if user.startswith(_KEY_PREFIX) and not password:
        return Located(bare, {"key": user})
    return Located(bare, {"user": user, "password": password})


def choose_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The credentials of an environment as options of a client: the first that is set of a key, a
    token, a user and systemd's credential."""
    found = {
        option: value for name, option in VARIABLES.items() if (value := environment.get(name))
    }
    for way in _WAYS:
        if way[0] in found:
            return {option: found[option] for option in way if option in found}
    folder = environment.get("CREDENTIALS_DIRECTORY")
    if folder and (Path(folder) / _CREDENTIAL).is_file():
        return {"key_file": str(Path(folder) / _CREDENTIAL)}
    return {}


def check_credentials(options: ClientOptions) -> None:
    """Refuses more than one way to log in at a time."""
    given = [
        name
        for name, one in (
            ("key", options.key or options.key_file),
            ("user", options.user),
            ("token", options.token),
        )
        if one
    ]
    if len(given) > 1:
        raise InvalidArgumentError(
            f"A client can log in in only one way, but {' and '.join(given)} were given. Leave "
            "one out."
        )
    if (options.password or options.password_file) and not options.user:
        raise InvalidArgumentError("A password needs a user: give user= as well.")
    if options.user and not (options.password or options.password_file):
        raise InvalidArgumentError(
            "A user needs a password: give password= or password_file= as well (commands: "
            "FANLOG_PASSWORD_FILE)."
        )
    token: object = options.token
    if not isinstance(token, str) and not callable(token):
        raise InvalidArgumentError("A token is a text, or a function that returns one.")


def is_refreshable(options: ClientOptions) -> bool:
    """Whether the next login may have other credentials than the last one."""
    return callable(options.token) or bool(options.key_file or options.password_file)


async def get_login(options: ClientOptions) -> Login | None:
    """The credentials for now; None without any."""
    if not callable(options.token):
        return _known_login(options)
    try:
        found = cast(TokenSource, options.token)()
        token = await found if inspect.isawaitable(found) else found
    except FanlogError:
        raise
    except Exception as fault:
        raise _no_token(fault) from fault
    return Login(token=_checked_token(token))


def get_login_now(options: ClientOptions) -> Login | None:
    """The same for code without an event loop."""
    if not callable(options.token):
        return _known_login(options)
    try:
        token = cast(TokenSource, options.token)()
    except FanlogError:
        raise
    except Exception as fault:
        raise _no_token(fault) from fault
    if inspect.isawaitable(token):
        if inspect.iscoroutine(token):
            token.close()
        raise InvalidArgumentError(
            "Here the function `token` must be a plain function, not an async one."
        )
    return Login(token=_checked_token(token))


def _known_login(options: ClientOptions) -> Login | None:
    if options.key or options.key_file:
        return Login(key=options.key or read_secret(options.key_file, "key_file"))
    if options.token:
        return Login(token=str(options.token))
    if options.user:
        password = options.password
        if not password and options.password_file:
            password = read_secret(options.password_file, "password_file")
        return Login(user=options.user, password=password)
    return None


def _checked_token(token: object) -> str:
    if not isinstance(token, str) or not token:
        raise InvalidArgumentError("The function `token` must return the token as a str.")
    return token


def _no_token(fault: Exception) -> ConnectError:
    return ConnectError(f"There is no token to log in with: the function raised {fault!r}.")


def read_secret(path: str, what: str) -> str:
    """The one line of a file."""
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        text = data.decode().strip()
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise ConfigError(
            f"The file {path!r} ({what}) can't be read: {reason}. Check the path."
        ) from None
    if not text or "\n" in text or len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"The file {path!r} ({what}) must contain only the secret, in one line.")
    return text
