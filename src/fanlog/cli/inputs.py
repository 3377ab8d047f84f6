"""The input of `fanlog publish`: lines as they arrive, with bounded memory, or a whole file as one
message."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from fanlog.cli.exit_codes import CommandError, ExitCode
from fanlog.cli.file_faults import reason
from fanlog.errors import InvalidArgumentError
from fanlog.model import MIB

READ_BYTES = 256 * 1024
# No topic takes longer messages, so that a longer line can't be one.
LINE_BYTES_MAX = 64 * MIB
# Chunks read ahead of what is published.
_AHEAD = 4

InputChunk = list[bytes] | CommandError | None


class LineReader:
    """Lines of a file descriptor, read by a thread, so that a terminal, a pipe and a file all
    work, and the connection lives on while nothing comes.

    The thread is a daemon's: it may hang in a read when the command is interrupted.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[InputChunk] = asyncio.Queue()
        self._ahead = threading.Semaphore(_AHEAD)
        self.bytes_read = 0
        threading.Thread(target=self._read, name="fanlog-input", daemon=True).start()

    async def chunks(self) -> AsyncIterator[list[bytes]]:
        """The lines that came at once, without their ends."""
        while True:
            chunk = await self._chunks.get()
            if chunk is None:
                return
            if isinstance(chunk, CommandError):
                raise chunk
            yield chunk
            self._ahead.release()

    def _read(self) -> None:
        try:
            self._read_lines()
        except OSError as fault:
            sentence = f"The input can't be read: {reason(fault)}"
            self._put(CommandError(sentence, ExitCode.FAILED))

    def _read_lines(self) -> None:
        rest: list[bytes] = []
        rest_bytes = 0
        while True:
            self._ahead.acquire()
            data = os.read(self._fd, READ_BYTES)
            if not data:
                break
            self.bytes_read += len(data)
            first, *others = data.split(b"\n")
            rest.append(first)
            rest_bytes += len(first)
            if rest_bytes > LINE_BYTES_MAX:
                sentence = (
                    f"A line is longer than {LINE_BYTES_MAX} bytes, the limit of a topic: split it."
                )
                self._put(CommandError(sentence, ExitCode.BAD_DATA))
                return
            if others:
                self._put([b"".join(rest), *others[:-1]])
                rest, rest_bytes = [others[-1]], len(others[-1])
            else:
                self._ahead.release()
        if rest_bytes:
            self._put([b"".join(rest)])
        self._put(None)

    def _put(self, chunk: InputChunk) -> None:
        # If the command has ended, its loop is gone, and nothing waits for this.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)


def read_whole(file: Path) -> bytes:
    """A file as one message."""
    try:
        if file.stat().st_size > LINE_BYTES_MAX:
            raise CommandError(
                f"{file} is larger than {LINE_BYTES_MAX} bytes, the limit of a topic. "
                "To publish each line as a message, give --lines.",
                ExitCode.BAD_DATA,
            )
        return file.read_bytes()
    except OSError as fault:
        raise unreadable(file, fault) from fault


def unreadable(file: Path, fault: OSError) -> CommandError:
    missing = isinstance(fault, FileNotFoundError)
    return CommandError(
        f"{file} can't be read: {reason(fault)}",
        ExitCode.NOT_FOUND if missing else ExitCode.FAILED,
    )


def parse_headers(given: list[str]) -> dict[str, str]:
    """Headers as they are given: NAME=VALUE, each."""
    headers: dict[str, str] = {}
    for header in given:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise InvalidArgumentError(
                f"--header is {header!r}, but must be NAME=VALUE, such as trace=4711."
            )
        headers[name] = value
    return headers
