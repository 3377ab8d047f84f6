"""What the calls of a typed topic pass on to the client, by name. `tests/client/test_typed.py`
holds them against the client's own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Literal, TypedDict

from fanlog.client.arguments import StartLike
from fanlog.client.core.receiving import OnGap
from fanlog.client.message import Message
from fanlog.client.values import Headers
from fanlog.errors import DecodeError
from fanlog.model import MissingPolicy

OnUndecodable = Literal["raise", "skip"] | Callable[[Message, DecodeError], object]


class _MessageOptions(TypedDict, total=False):
    key: bytes | str | None
    headers: Headers | None
    event_time: dt.datetime | int | None
    partition: int | None
    priority: int


class _Delay(TypedDict, total=False):
    """What delays a message: `delay_seconds`, or `at` a time."""

    delay_seconds: float | None
    at: dt.datetime | float | None
    schedule_id: str | None


class SendOptions(_MessageOptions, _Delay, total=False):
    pass


class TypedPublishOptions(_MessageOptions, total=False):
    timeout_seconds: float | None


class LaterOptions(TypedPublishOptions, _Delay, total=False):
    pass


class RequestOptions(TypedDict, total=False):
    timeout_seconds: float
    key: bytes | str | None
    headers: Headers | None


class SubscribeOptions(TypedDict, total=False):
    start: StartLike
    durable: str
    policy: str
    partitions: tuple[int, ...] | None
    on_gap: OnGap | None
    window_bytes: int | None
    missing: MissingPolicy
