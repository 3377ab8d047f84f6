"""Options of `client.work`, in the asyncio client and the blocking one."""

from __future__ import annotations

import secrets
from typing import TypedDict, cast

from fanlog.client.arguments import checked, reset_policy, topic_name
from fanlog.client.backoff import Backoff
from fanlog.client.notices import missing_policy
from fanlog.errors import InvalidArgumentError
from fanlog.format.messages import Work
from fanlog.format.patterns import is_pattern
from fanlog.model import MissingPolicy, QueueSettings, ResetPolicy

_SETTINGS = frozenset(QueueSettings.__struct_fields__)
# The longest wait that a queue takes.
_WAIT_SECONDS_MAX = 86_400.0


class WorkOptions(TypedDict, total=False):
    """How a worker works. Settings of the queue that are given change the queue's; the others stay
    as they are.

    | option | default | |
    | --- | --- | --- |
    | `prefetch` | 1 | how many jobs this worker has at a time; with a handler, its concurrency |
    | `retry` | the queue's | the queue's: a `Backoff`, how long a job that failed waits |
    | `raise_errors` | False | a job's error ends the loop; by default it is logged |
    | `worker` | one of its own | the worker's name; the second of a name replaces the first |
    | `keep_alive` | True | asks for more time as long as a job is in hand |
    | `visibility_seconds` | 30 | the queue's: a job without an outcome for so long goes to others |
    | `max_deliveries` | 5 | the queue's: after so many failures a job becomes a dead letter |
    | `retry_delay_seconds` | 0 | the queue's: the same for a wait that does not grow |
    | `dead_letter` | `dead.` and the topic | the queue's: the dead-letter topic |
    | `ordered` | False | the queue's: one job of a key at a time, in the order of the log |
    | `reset` | earliest | the queue's: where a new queue begins |
    | `missing` | wait | for a topic that does not exist; `fail` raises `TopicNotFoundError` |
    """

    prefetch: int
    retry: Backoff | None
    raise_errors: bool
    worker: str
    keep_alive: bool
    visibility_seconds: float | None
    max_deliveries: int | None
    retry_delay_seconds: float | None
    dead_letter: str | None
    ordered: bool | None
    reset: ResetPolicy | None
    missing: MissingPolicy


def working(topic: str, *, queue: str, client: str, options: WorkOptions) -> Work:
    """The request to join a queue. A worker without a name gets a unique one."""
    unknown = options.keys() - WorkOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(WorkOptions.__annotations__))
        raise InvalidArgumentError(f"work() has no option {min(unknown)!r}. It has {known}.")
    if not isinstance(queue, str) or not queue:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError("A queue needs a name: work(topic, queue='mailers').")
    if options.get("reset") is not None:
        reset_policy(options.get("reset"))
    name = options.get("worker", "")
    wanted = Work(
        queue=queue,
        worker=name or f"{client or 'worker'}-{secrets.token_hex(6)}",
        target=topic_name(topic),
        wildcard=is_pattern(topic),
        named=bool(name),
        prefetch=options.get("prefetch", 1),
        settings=_settings(options),
        missing=missing_policy(options.get("missing", "wait")),
    )
    return checked(wanted)


def _settings(options: WorkOptions) -> dict[str, int | float | str | bool]:
    given = {name: value for name, value in options.items() if name in _SETTINGS}
    settings = {name: value for name, value in given.items() if value is not None}
    return cast("dict[str, int | float | str | bool]", settings) | _retry_settings(options)


def _retry_settings(options: WorkOptions) -> dict[str, int | float | str | bool]:
    """All four belong together: a rule that is given replaces the queue's."""
    retry, delay_seconds = options.get("retry"), options.get("retry_delay_seconds")
    if retry is not None and delay_seconds is not None:
        raise InvalidArgumentError(
            "Give retry or retry_delay_seconds, not both: each says how long a job waits."
        )
    if retry is None and delay_seconds is None:
        return {}
    if retry is None:
        retry = Backoff(first_seconds=0, factor=1, max_seconds=_WAIT_SECONDS_MAX, jitter=0)
    elif not isinstance(retry, Backoff):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"retry is a fanlog.Backoff, not {retry!r}.")
    return {
        "retry_delay_seconds": retry.first_seconds if delay_seconds is None else delay_seconds,
        "retry_factor": retry.factor,
        "retry_max_seconds": retry.max_seconds,
        "retry_jitter": retry.jitter,
    }
