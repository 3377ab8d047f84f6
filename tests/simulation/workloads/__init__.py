"""The workloads of the simulation. A seed runs some of `ALL`."""

from __future__ import annotations

from tests.simulation.workload import Workload
from tests.simulation.workloads.compacting import Compacting
from tests.simulation.workloads.fencing import Fencing
from tests.simulation.workloads.grouping import Grouping
from tests.simulation.workloads.handling import Handling
from tests.simulation.workloads.managing import Managing
from tests.simulation.workloads.publishing import Publishing
from tests.simulation.workloads.queueing import Queueing
from tests.simulation.workloads.transacting import Transacting
from tests.simulation.workloads.transforming import Transforming

ALL: tuple[type[Workload], ...] = (
    Publishing,
    Grouping,
    Queueing,
    Transacting,
    Transforming,
    Fencing,
    Managing,
    Compacting,
    Handling,
)
