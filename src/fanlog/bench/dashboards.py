"""Open dashboards as a broker sees them: connections that stay, and the requests that each page
repeats. A browser would take the cores that the measurement needs.

Law: the requests are those that the pages send, no more and no fewer, and as often. A test opens
the pages in Chromium and compares (tests/dashboard/test_polls.py). A page that shows a live tail
says with each request where the last answer ended. A request is sent while the broker is measured,
and its answer is read when that is over.
"""

from __future__ import annotations

import contextlib
import http.client
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec
import zstandard

import fanlog
from fanlog.bench.systems import HOST, BenchError
from fanlog.bench.wires.fanlog import NAME

ANSWER_TIMEOUT_S = 20.0
# The encodings that Chromium accepts.
ACCEPTED = "gzip, deflate, br, zstd"
# The topics of a small shop, so that lists are not empty.
_TOPICS = 100
_GROUPS = 20
_DEAD = 50


@dataclass(frozen=True, slots=True)
class Poll:
    """A request that a page repeats. `follows` names the field of an answer that the next request
    repeats."""

    path: str
    every_s: float
    follows: str = ""


# Around every page.
_HEALTH = Poll("/v1/health", 10.0)
_METRICS = (
    "published_messages",
    "delivered_messages",
    "published_bytes",
    "delivered_bytes",
    "fetched_bytes",
    "delivered_jobs",
    "redelivered_jobs",
    "connections",
    "subscriptions",
    "group_lag",
    "queue_lag",
    "dead_letters",
    "missed_messages",
    "readers_behind",
    "slow_readers",
    "loop_delay_p50",
    "loop_delay_p99",
    "turn_p99",
    "sync_p99",
    "cpu",
    "resident_bytes",
    "tail_bytes",
    "disk_free_bytes",
    "pending_bytes",
    "open_files",
    "threads",
    "denied",
    "limited",
    "auth_failures",
    "accepted_connections",
    "refused_connections",
    "topics",
    "partitions",
    "groups",
    "queues",
    "rebalances",
    "delayed_messages",
)
_LIST = "offset=0&limit=50"


def _history(*names: str) -> Poll:
    wanted = "&".join(f"name={name}" for name in names)
    return Poll(f"/v1/metrics/history?{wanted}&range=1h", 10.0)


# By the address of the page.
PAGES: dict[str, tuple[Poll, ...]] = {
    "/": (_HEALTH, Poll("/v1/overview", 3.0)),
    "/topics": (_HEALTH, Poll(f"/v1/topic-list?sort=name&descending=false&{_LIST}", 5.0)),
    f"/topics/{NAME}": (
        _HEALTH,
        Poll(f"/v1/topics/{NAME}/details", 5.0),
        Poll(f"/v1/explore?topic={NAME}&limit=5&preview_bytes=240", 5.0),
        *(
            _history(f"topic.{NAME}.{figure}")
            for figure in ("bytes", "messages", "readers", "stored_bytes")
        ),
    ),
    f"/explorer?topic={NAME}": (
        _HEALTH,
        Poll(f"/v1/explore?topic={NAME}&limit=100&scan_bytes=4194304", 1.0, follows="after"),
    ),
    "/groups": (
        _HEALTH,
        Poll(f"/v1/group-list?kind=stream&sort=lag&descending=true&{_LIST}", 5.0),
    ),
    "/queues": (
        _HEALTH,
        Poll(f"/v1/group-list?kind=queue&sort=waiting&descending=true&{_LIST}", 5.0),
    ),
    "/dead": (
        _HEALTH,
        Poll(f"/v1/dead-letters?sort=letters&{_LIST}&empty=false", 5.0),
        Poll("/v1/tasks", 15.0),
    ),
    "/clients": (
        _HEALTH,
        Poll("/v1/connection-list?sort=behind_bytes&limit=50&descending=true&offset=0", 5.0),
    ),
    "/metrics": (_HEALTH, _history(*_METRICS)),
}
# The pages of ten people.
OPENED = (
    "/",
    "/",
    "/topics",
    f"/topics/{NAME}",
    f"/explorer?topic={NAME}",
    "/groups",
    "/queues",
    "/dead",
    "/clients",
    "/metrics",
)


@dataclass(slots=True)
class _Asked:
    """One poll of one dashboard. Its connection is its own: a browser has several, too."""

    poll: Poll
    web: http.client.HTTPConnection
    due_s: float
    token: str = ""
    sent: bool = False


@dataclass(slots=True)
class Dashboards:
    """A number of open dashboards. `requests` counts their requests."""

    port: int
    key: str
    count: int
    requests: int = 0
    _asked: list[_Asked] = field(default_factory=list[_Asked])

    def open(self) -> None:
        """Connects. Each dashboard has its own phase, as if opened one after the other."""
        for number in range(self.count):
            for poll in PAGES[OPENED[number % len(OPENED)]]:
                web = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_TIMEOUT_S)
                due_s = poll.every_s * number / self.count
                self._asked.append(_Asked(poll, web, due_s))

    def ask(self, busy_s: float) -> None:
        """Sends the requests due within the next seconds."""
        headers = {"Accept": "application/json", "Accept-Encoding": ACCEPTED}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        for one in self._asked:
            one.due_s -= busy_s
            if one.due_s > 0:
                continue
            one.due_s += one.poll.every_s
            if one.due_s < 0:
                one.due_s = 0.0  # Missed polls are not repeated.
            mark = "&" if "?" in one.poll.path else "?"
            more = f"{mark}{one.poll.follows}={quote(one.token)}" if one.token else ""
            one.web.request("GET", one.poll.path + more, headers=headers)
            one.sent = True
            self.requests += 1

    def read(self) -> None:
        """Reads the answers."""
        for one in self._asked:
            if not one.sent:
                continue
            one.sent = False
            answer = one.web.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise BenchError(f"{one.poll.path} answered {answer.status}: {body[:200]!r}")
            if one.poll.follows:
                one.token = _token(body, one.poll.follows, answer.headers["Content-Encoding"])

    def close(self) -> None:
        for one in self._asked:
            one.web.close()


def _token(body: bytes, name: str, encoding: str | None) -> str:
    if encoding == "zstd":
        body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    elif encoding:
        body = zlib.decompress(body, zlib.MAX_WBITS | 32)
    found: Any = msgspec.json.decode(body)
    return str(found[name])


@contextlib.contextmanager
def dashboards(port: int, key: str, count: int) -> Generator[Dashboards]:
    opened = Dashboards(port, key, count)
    opened.open()
    try:
        yield opened
    finally:
        opened.close()


def furnish(port: int, key: str = "") -> None:
    """Fills a broker with what the pages list: topics, groups, and a queue with dead letters."""
    given = {"key": key} if key else {}
    with fanlog.sync.connect(f"fanlog://{HOST}:{port}", None, **given) as client:
        for number in range(_TOPICS):
            client.create_topic(f"shop.{number}", durability="memory", exist_ok=True)
        client.publish_many("shop.0", [b"one tea"] * 100)
        for number in range(_GROUPS):
            client.groups.reset(f"group-{number}", "earliest", "shop.0")
        client.publish_many("shop.1", [b"a job"] * _DEAD)
        with client.work("shop.1", queue="mailers", prefetch=_DEAD) as worker:
            done = 0
            while done < _DEAD:
                batch = worker.next_batch()
                batch.reject("no address")
                done += batch.next - batch.first
