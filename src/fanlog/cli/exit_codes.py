"""The exit codes of commands, and which error leads to which. Law: scripts rely on these numbers,
so a number never gets another meaning."""

from __future__ import annotations

from enum import IntEnum

from fanlog.errors import (
    AccountExistsError,
    AccountNotFoundError,
    ConfigError,
    FanlogError,
    ForbiddenError,
    FormatError,
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidNameError,
    LinkError,
    PartitionNotFoundError,
    TopicDeletedError,
    TopicExistsError,
    TopicNotFoundError,
    UnauthenticatedError,
)


class ExitCode(IntEnum):
    """What a command's exit code says.

    | code | meaning                                                      |
    | ---- | ------------------------------------------------------------ |
    | 0    | done; for `health`: the broker is healthy                    |
    | 1    | the operation failed; for `health`: something is wrong       |
    | 2    | the command, an argument or an option is wrong               |
    | 3    | there is no such topic, partition or group                   |
    | 4    | it exists already                                            |
    | 65   | bad data or a bad configuration                              |
    | 69   | no broker answers, or the connection to it was lost          |
    | 77   | this key or user may not do it, or the login is wrong        |
    | 130  | interrupted (Ctrl-C)                                         |
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    EXISTS = 4
    BAD_DATA = 65
    UNREACHABLE = 69
    DENIED = 77
    INTERRUPTED = 130


class CommandError(FanlogError):
    """An error on this side of the wire, with its exit code."""

    code = "command"

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# The first that fits decides, so a branch comes after its leaves.
_BY_ERROR: tuple[tuple[type[FanlogError], ExitCode], ...] = (
    (InvalidArgumentError, ExitCode.USAGE),
    (InvalidNameError, ExitCode.USAGE),
    (TopicNotFoundError, ExitCode.NOT_FOUND),
    (TopicDeletedError, ExitCode.NOT_FOUND),
    (PartitionNotFoundError, ExitCode.NOT_FOUND),
    (GroupNotFoundError, ExitCode.NOT_FOUND),
    (AccountNotFoundError, ExitCode.NOT_FOUND),
    (AccountExistsError, ExitCode.EXISTS),
    (TopicExistsError, ExitCode.EXISTS),
    (UnauthenticatedError, ExitCode.DENIED),
    (ForbiddenError, ExitCode.DENIED),
    (FormatError, ExitCode.BAD_DATA),
    (ConfigError, ExitCode.BAD_DATA),
    (LinkError, ExitCode.UNREACHABLE),
)


def exit_code_of(error: FanlogError) -> ExitCode:
    """The exit code that an error leads to."""
    if isinstance(error, CommandError):
        return error.exit_code
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED


def exit_codes_help() -> str:
    """The table of `ExitCode`, one line a code, as the epilog of `fanlog --help` has it."""
    rows = (line.strip().strip("|").split("|") for line in (ExitCode.__doc__ or "").splitlines())
    cells = [[cell.strip() for cell in row] for row in rows if len(row) == 2]
    return "\n".join(f"{code:>5}  {meaning}" for code, meaning in cells if code.isdigit())
