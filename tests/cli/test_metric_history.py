"""The history of metrics in a broker that is killed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

from tests.cli.conftest import PATIENCE_SECONDS, Serving


def history_of(serving: Serving) -> dict[int, float]:
    """The connections that were counted, by their time."""
    address = re.search(r"http://[\w.:]+", "\n".join(serving.banner))
    assert address is not None, serving.banner
    url = f"{address[0]}/v1/metrics/history?range=5m&name=connections"
    with urlopen(url) as answer:
        told: dict[str, Any] = json.load(answer)
    values = told["series"][0]["values"]
    return {
        when: value for when, value in zip(told["times"], values, strict=True) if value is not None
    }


def until_there(serving: Serving, count: int) -> dict[int, float]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found := history_of(serving)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return found


def test_it_survives_kill_9(serve: Callable[..., Serving]) -> None:
    first = serve("--data", "data")
    # The newest row may not be written yet when the process is killed.
    before = until_there(first, 3)
    first.kill()
    second = serve("--data", "data")
    after = until_there(second, len(before) - 1)
    kept = dict(list(before.items())[:-1])
    assert kept.items() <= after.items()
    assert second.stop().code == 0
