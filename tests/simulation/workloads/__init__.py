"""The workloads of the simulation. A seed runs some of `ALL`."""

from __future__ import annotations

from tests.simulation.workload import Workload
from tests.simulation.workloads.publishing import Publishing

ALL: tuple[type[Workload], ...] = (Publishing,)
