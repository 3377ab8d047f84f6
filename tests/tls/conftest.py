from __future__ import annotations

from pathlib import Path

import pytest

from tests.tls.papers import Papers


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "papers")
