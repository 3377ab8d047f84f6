"""A short run of what `make power` does for as long as you like."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.power.campaign import campaign
from tests.power.machine import Backend, machine_of

CUTS: dict[Backend, int] = {"fuse": 4, "ext4": 2}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", CUTS)
def test_nothing_acknowledged_is_lost_doubled_or_moved_by_outages(
    tmp_path: Path, backend: Backend
) -> None:
    with machine_of(backend, tmp_path, seed=10) as machine:
        result = asyncio.run(campaign(machine, seed=10, cuts=CUTS[backend]))
    print(result)
