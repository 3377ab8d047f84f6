"""Sends a question to all web listeners of a bus, and waits for their answers. Each answer names
the processes that its sender knows of: when all of these have answered, nobody is missing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import msgspec

from fanlog.errors import FormatError
from fanlog.format.signals import SignalAnswer, SignalAsk, decode_web, encode_web


class _OpenQuestion:
    """One question, and the answers so far, by process."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.answers: dict[str, SignalAnswer] = {}
        self.complete = asyncio.Event()

    def take(self, answers: SignalAnswer) -> None:
        self.answers[answers.process] = answers
        expected = {name for one in self.answers.values() for name in one.processes}
        if len(self.answers) >= self.enough > 0 or expected <= set(self.answers):
            self.complete.set()


class Asker:
    """Signals go out through `send`; incoming ones go to `hear`."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._waiting: dict[str, _OpenQuestion] = {}

    def hear(self, answers: SignalAnswer) -> None:
        waiting = self._waiting.get(answers.id)
        if waiting is not None:
            waiting.take(answers)

    def hear_signal(self, data: bytes) -> None:
        """The same for the bytes of a signal, whatever it is."""
        try:
            signal = decode_web(data)
        except FormatError:
            return
        if isinstance(signal, SignalAnswer):
            self.hear(signal)

    async def ask(
        self, question: SignalAsk, timeout_seconds: float, *, enough: int = 0
    ) -> list[SignalAnswer]:
        """The answers of all processes, or of those that answered in time. With `enough`, it waits
        only for that many answers."""
        question = msgspec.structs.replace(question, id=secrets.token_hex(8))
        waiting = self._waiting[question.id] = _OpenQuestion(enough)
        try:
            self._send(encode_web(question))
            async with asyncio.timeout(timeout_seconds):
                await waiting.complete.wait()
        except TimeoutError:
            pass
        finally:
            del self._waiting[question.id]
        return list(waiting.answers.values())
