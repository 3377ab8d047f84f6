"""How log lines look on stderr: readable ones for people, JSON lines for collectors."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
from rich.text import Text

from fanlog.cli.terminal import err
from fanlog.telemetry.callers import connection_id, maybe_who

# Longer lines are cut: a client must not fill the disk with one name.
_LINE_LENGTH_MAX = 4000
_USER_LENGTH_MAX = 200
_LINES_A_SECOND = 50
_KINDS_MAX = 1000
_STYLES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red", "DEBUG": "dim"}


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Readable(logging.Formatter):
    """`12:30:01.123 WARNING log: sentence`."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        return f"{clock}.{int(record.msecs):03d}"

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """A traceback has several lines; none of them looks like an event."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"    | {_one_line(line)}" for line in lines)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """An event is a line: a name that somebody chose can neither end it nor colour it."""
        record.message = _one_line(record.message + _caller(record.message))
        return super().formatMessage(record)


# What some program takes for the end of a line, or a terminal for a command, and JSON leaves as is.
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def _caller(message: str) -> str:
    """The client and request of the line, if the sentence does not name them."""
    who = maybe_who()
    if who is None:
        return ""
    parts: list[str] = []
    if who.address and who.address not in message:
        parts.append(connection_id(who))
    if who.user:
        parts.append(f"user {who.user[:_USER_LENGTH_MAX]}")
    return f" [{', '.join(parts)}]" if parts else ""


def _one_line(text: str) -> str:
    text = _shortened(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _shortened(text: str) -> str:
    """A client may choose a name of any length."""
    if len(text) <= _LINE_LENGTH_MAX:
        return text
    return f"{text[:_LINE_LENGTH_MAX]}... ({len(text)} characters)"


def _encodable(text: str) -> str:
    """Without halves of characters, which JSON can't hold."""
    return text.encode(errors="backslashreplace").decode()


class _TerminalHandler(logging.Handler):
    """Log lines through Rich, so that colours end where no terminal is."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            err().print(Text(line, style=_STYLES.get(record.levelname, "")))
        except Exception:  # noqa: BLE001 - as logging asks of a handler
            self.handleError(record)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _encodable(_shortened(record.getMessage())),
        }
        who = maybe_who()
        if who is not None:
            line |= {
                "connection": _encodable(connection_id(who)),
                "user": _encodable(who.user[:_USER_LENGTH_MAX]),
            }
        if record.exc_info:
            line["traceback"] = _encodable(self.formatException(record.exc_info))
        encoded = msgspec.json.encode(line).decode()
        return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


class FewOfAKind(logging.Filter):
    """A client that keeps sending garbage must not fill the disk with lines about it. Of one kind
    of line there are `_LINES_A_SECOND`; the next one after that says how many were left out."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        # By what a line says, without the names in it: the second, its lines, and those left out.
        self._kinds: dict[tuple[str, str], tuple[int, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        kind = (record.name, str(record.msg))
        now = int(self._now())
        second, lines, left_out = self._kinds.get(kind, (now, 0, 0))
        if second != now:
            second, lines = now, 0
        if lines >= _LINES_A_SECOND:
            self._kinds[kind] = (second, lines, left_out + 1)
            return False
        if len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = (second, lines + 1, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} more lines like it were left out)"
        return True


def set_up_logging(level: LogLevel, *, as_json: bool = False) -> None:
    """Sends log lines of this level and worse to stderr."""
    handler: logging.Handler
    if as_json:
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonLines())
    else:
        handler = _TerminalHandler()
        handler.setFormatter(_Readable("{asctime} {levelname:<7} {name}: {message}", style="{"))
    handler.addFilter(FewOfAKind())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value.upper())


def set_log_level(level: str) -> None:
    """Logs lines of this level and worse from now on."""
    logging.getLogger().setLevel(level.upper())
