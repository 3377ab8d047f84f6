"""schemathesis reads the OpenAPI document, makes requests that fit it and others that do not, and
compares every answer with what the document says: also that nobody gets in without a login."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from fanlog.config_limits import LimitOptions
from fanlog.identity import Role
from tests.listeners.web.guarded import guarded

# Answers that do not end, and logins that need a provider; they have tests of their own.
STREAMING = (
    *("/v1/ws", "/v1/stream", "/v1/topics/{topic}/stream", "/v1/groups/{group}/stream"),
    *("/v1/oidc/login", "/v1/oidc/callback"),
)

# What a document can't say is how things stand: that a name is missing or taken (404, 409), or that
# nobody answers a request (503).
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "429", "5xx"]

[phases.coverage]
unexpected-methods = ["DELETE", "PATCH", "TRACE"]

# Each of their many fields would be tried in all ways, which takes longer than all the rest. The
# other phases try them, and POST /v1/publish has the same messages.
[[operations]]
include-name = [
  "POST /v1/topics", "PATCH /v1/topics/{topic}", "POST /v1/topics/{topic}/messages",
  "POST /v1/keys", "PATCH /v1/keys/{key}", "POST /v1/users", "PATCH /v1/users/{user}"
]
phases.coverage.enabled = false

# An offset past the end.
[[operations]]
include-name = [
  "GET /v1/topics/{topic}/messages",
  "GET /v1/topics/{topic}/partitions/{partition}/messages",
  "POST /v1/topics/{topic}/truncate",
]
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "401", "403", "404", "409", "416", "429", "5xx"
]

# A key that was used before.
[[operations]]
include-name = ["POST /v1/publish", "POST /v1/topics/{topic}/messages"]
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "401", "403", "404", "409", "422", "429", "5xx"
]

# Conditions on messages have a grammar of their own, and names of partitions, times and offsets a
# meaning.
[[operations]]
include-path-regex = "/v1/explore.*"
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "400", "401", "403", "404", "409", "416", "429", "5xx"
]

# A time begins before it ends.
[[operations]]
include-name = "GET /v1/metrics/history"
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "400", "401", "403", "404", "409", "429", "5xx"
]

# A broker of its own has no primary to move.
[[operations]]
include-name = "POST /v1/cluster/move"
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "400", "401", "403", "404", "409", "429", "5xx"
]

# A receipt has a meaning that a pattern does not show.
[[operations]]
include-path-regex = "/v1/queues/.*/(ack|nack|reject|extend)$"
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "400", "401", "403", "404", "409", "429", "5xx"
]

# Names and patterns of rules have a meaning too, and a password is one that nobody guesses.
[[operations]]
include-path-regex = "/v1/(keys|users).*"
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "400", "401", "403", "404", "409", "429", "5xx"
]

# A cron expression, a time zone, and where a page goes on have a meaning, too.
[[operations]]
include-path-regex = "/v1/(schedules|delayed).*"
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "400", "401", "403", "404", "409", "429", "5xx"
]

# A broker inside a program has no file with settings.
[[operations]]
include-path-regex = "/v1/config.*"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]

# Text and events go on until the stream ends. A position may be that of a stream that is gone.
[[operations]]
include-name = "GET /v1/streams/{name}"
parameters = { "query.format" = "json" }
checks.positive_data_acceptance.expected-statuses = [
  "2xx", "3xx", "401", "403", "404", "409", "410", "429", "5xx"
]

[[operations]]
include-path = "/v1/request/{topic}"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503", "504"]
"""


@pytest.mark.timeout(900)
def test_no_request_gets_an_answer_that_the_document_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)

    async def run() -> None:
        # As an admin. Wrong logins are tried, and are not to lock it out.
        limits = LimitOptions(exempt_addresses="127.0.0.0/8")
        async with guarded(web={"wait_seconds_max": 0.01}, limits=limits) as site:
            admin = site.key("the-admin-of-this-test", Role.ADMIN)
            running = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "schemathesis.cli"),
                *("--config-file", str(tmp_path / "schemathesis.toml"), "run"),
                f"{site.url}/v1/openapi.json",
                *("--header", f"Authorization: Bearer {admin}"),
                *("--checks", "all", "--phases", "examples,coverage,fuzzing,stateful"),
                *("--max-examples", "4", "--generation-deterministic", "--no-shrink"),
                *("--continue-on-failure", "--request-timeout", "60"),
                *(word for path in STREAMING for word in ("--exclude-path", path)),
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await running.communicate()
            assert running.returncode == 0, said.decode()

    # Not an async test: on a busy machine it takes longer than those may.
    asyncio.run(run())
