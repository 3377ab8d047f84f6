"""A follower that cannot note that its copy is whole acknowledges nothing."""

from __future__ import annotations

from pathlib import Path

from fanlog.cluster.follower_role import FollowerRole
from fanlog.config import ClientOptions, Config
from fanlog.errors import DiskFullError, FanlogError


class Session:
    def __init__(self) -> None:
        self.fault: FanlogError | None = None
        self.reports = 0

    def fail(self, why: FanlogError) -> None:
        self.fault = why

    def report(self) -> None:
        self.reports += 1


async def test_a_copy_that_cannot_be_noted_as_whole_is_not_acknowledged(tmp_path: Path) -> None:
    full = DiskFullError("There is no room.")

    def whole() -> None:
        if not noted:
            raise full

    noted: list[str] = []
    role = FollowerRole(
        tmp_path / "b",
        Config(),
        ClientOptions(name="node"),
        cluster="c0ffee",
        incarnation="b.1",
        complete=False,
        incomplete=lambda: None,
        whole=whole,
        front=False,
    )
    session = Session()
    role._session = session  # type: ignore[assignment]
    role.replica.written = role.replica.synced = 5
    role._moved()
    assert session.fault is full
    assert session.reports == 0
    assert (role.applied.written, role.applied.synced) == (0, 0)
    noted.append("there is room again")
    role._moved()
    assert session.reports == 1
    assert (role.applied.written, role.applied.synced) == (5, 5)
