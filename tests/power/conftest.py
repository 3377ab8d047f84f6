"""Machines for tests, one for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.disk import CUTS
from tests.power.machine import FuseMachine, fuse_machine

# The two that have shown the most; FANLOG_POWER_CUTS=all takes the others, too.
USUAL_CUTS = ("drop", "names")


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[FuseMachine]:
    """Cuts drop all that was not synced."""
    with fuse_machine(tmp_path) as made:
        yield made


@pytest.fixture(params=CUTS if os.environ.get("FANLOG_POWER_CUTS") == "all" else USUAL_CUTS)
def cuts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FuseMachine]:
    """The test runs with each kind of cut."""
    with fuse_machine(tmp_path, request.param) as made:
        yield made
