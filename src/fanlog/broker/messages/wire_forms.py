"""Wire forms other than the batch: a view renders the same messages for one protocol. `views.py`
renders them once for all readers that share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fanlog.format.record_views import RecordView

Values = Sequence[bytes | None]


class View(Protocol):
    """A wire form. Views of one partition are sent in the order of their `rank`."""

    rank: int

    def render(self, values: Values) -> bytes: ...


AnyView = View | RecordView
