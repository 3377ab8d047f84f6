"""Machines for tests, one for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.machine import FuseMachine, fuse_machine


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[FuseMachine]:
    with fuse_machine(tmp_path) as made:
        yield made
