"""Three nodes and three members of etcd on hosts of their own, whose networks, disks and clocks
fail, too. `python -m tests.cluster.chaos --namespaces` does this for as long as one likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.chaos import isolation
from tests.etcd_servers import find_etcd
from tests.power.machine import go_without

MINUTES = 1.2
HOLD_SECONDS = 3.0
# The rounds take a minute. What has to hold in the end is waited for much longer.
SECONDS_MAX = 900.0


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_nothing_is_lost_while_hosts_networks_disks_and_clocks_fail(tmp_path: Path) -> None:
    find_etcd()
    if why := isolation.why_not():
        go_without(why)
    given = {
        "--minutes": MINUTES,
        "--hold-seconds": HOLD_SECONDS,
        "--seed": 16,
        "--disk-mib": 256,
        "--folder": tmp_path / "chaos",
    }
    arguments = [str(word) for pair in given.items() for word in pair]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.chaos", "--namespaces", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout
    assert "violations: 0" in done.stdout
