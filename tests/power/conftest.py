"""Machines for tests, one for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.disk import CUTS
from tests.power.machine import FuseMachine, fuse_machine


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[FuseMachine]:
    """Cuts drop all that was not synced."""
    with fuse_machine(tmp_path) as made:
        yield made


@pytest.fixture(params=CUTS)
def cuts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FuseMachine]:
    """The test runs with each kind of cut."""
    with fuse_machine(tmp_path, request.param) as made:
        yield made
