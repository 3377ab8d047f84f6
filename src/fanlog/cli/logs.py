"""How log lines look on stderr: readable ones for people, JSON lines for collectors."""

from __future__ import annotations

import logging
import time
from enum import StrEnum

import msgspec
from rich.text import Text

from fanlog.cli.terminal import err

_STYLES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red", "DEBUG": "dim"}


class LogLevel(StrEnum):
    """What is logged: this and worse."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Readable(logging.Formatter):
    """`12:30:01.123 WARNING log: sentence`."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        return f"{clock}.{int(record.msecs):03d}"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """An event is a line: a name that somebody chose can neither end it nor colour it."""
        record.message = _one_line(record.message)
        return super().formatMessage(record)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


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
            "message": _encodable(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up_logging(level: LogLevel, *, as_json: bool = False) -> None:
    """Sends log lines of this level and worse to stderr."""
    handler: logging.Handler
    if as_json:
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonLines())
    else:
        handler = _TerminalHandler()
        handler.setFormatter(_Readable("{asctime} {levelname:<7} {name}: {message}", style="{"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value.upper())


def set_log_level(level: str) -> None:
    """Logs lines of this level and worse from now on."""
    logging.getLogger().setLevel(level.upper())
