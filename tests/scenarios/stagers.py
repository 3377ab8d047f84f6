"""A process that stages its part of a transaction. Run as
`python -m tests.scenarios.stagers URL TICKET NUMBER COUNT`."""

from __future__ import annotations

import sys

import fanlog


def main(url: str, ticket: str, number: str, count: str) -> None:
    with fanlog.sync.connect(url) as client, client.join_transaction(ticket) as part:
        for i in range(int(count)):
            part.publish("out", f"{number}-{i}", key=number)


if __name__ == "__main__":
    main(*sys.argv[1:])
