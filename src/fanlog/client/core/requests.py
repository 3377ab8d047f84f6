"""Requests and their answers: numbers, waiting callers, and what may be repeated after a loss."""

from __future__ import annotations

from typing import Protocol

from fanlog.errors import ConnectionLostError, FanlogError, FormatError

REQUEST_NUMBER_MAX = 0xFFFFFFFF


class RequestWaiter(Protocol):
    """Waits for one answer. Exactly one of these is called, once."""

    def answered(self, payload: bytes) -> None: ...
    def failed(self, error: FanlogError) -> None: ...


class RequestTable:
    """The pending requests of a client, over all its connections. A number is not reused soon, so
    that a late answer matches no request."""

    __slots__ = ("_number", "_waiting")

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, RequestWaiter] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: RequestWaiter) -> int:
        """The number of the next request. 0 is never used."""
        self._number = self._number % REQUEST_NUMBER_MAX + 1
        self._waiting[self._number] = waiter
        return self._number

    def forget(self, number: int) -> None:
        """Forgets a request: its answer will be dropped."""
        self._waiting.pop(number, None)

    def answered(self, number: int, payload: bytes) -> None:
        waiter = self._waiting.pop(number, None)
        if waiter is not None:
            waiter.answered(payload)

    def failed(self, number: int, error: FanlogError) -> None:
        waiter = self._waiting.pop(number, None)
        if waiter is not None:
            waiter.failed(error)

    def fail_all(self, error: FanlogError) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            waiter.failed(error)


def may_ask_again(error: FanlogError) -> bool:
    """Whether a request that ended with this error is worth a new connection. The broker would not
    be able to read bytes that it could not read before."""
    return isinstance(error, ConnectionLostError) and not isinstance(error.__cause__, FormatError)
