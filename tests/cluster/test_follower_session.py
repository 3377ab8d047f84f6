"""What a follower tells its primary, and when."""

from __future__ import annotations

import pytest

from fanlog.cluster.follower_session import waits_for_sync
from fanlog.format.replication import Applied

TOLD = Applied(epoch=7, written=4, synced=4, beat=2)


@pytest.mark.parametrize(
    ("applied", "unsynced_position", "waits"),
    [
        (TOLD._replace(written=6), 3, True),
        # A publisher waits for `written`.
        (TOLD._replace(written=6), 5, False),
        (TOLD._replace(written=6, synced=5), 3, False),
        # The primary asked.
        (TOLD._replace(written=6, beat=3), 3, False),
        (TOLD._replace(epoch=8, written=6), 3, False),
    ],
)
def test_a_report_waits_for_the_sync_if_nobody_waits_for_less(
    applied: Applied, unsynced_position: int, waits: bool
) -> None:
    assert waits_for_sync(applied, TOLD, unsynced_position) is waits


def test_the_first_report_does_not_wait() -> None:
    assert not waits_for_sync(TOLD, None, 0)
