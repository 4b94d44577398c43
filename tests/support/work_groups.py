"""Which tests share a worker when they run side by side (`pytest -n`): a cluster is expensive, a model's server is too.

Tests of clusters wait most of the time, so two workers begin with one cluster each while others share the rest file by
file and give way to them: what a cluster does has time limits. More workers, or a second cluster with nodes, only fill
two cores that are busy already.
The groups go by path, because the process that hands out the tests knows no more of them.
"""

import os

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

NODES, API = "nodes", "api"
ORDER = (NODES, API)
"""The longest groups, which begin first."""
GROUPS = {
    "tests/cluster/test_api_tier.py": API,
    "tests/cluster/": NODES,
    "tests/e2e/test_on_kubernetes.py": NODES,
    "tests/helm/test_release.py": NODES,
    "tests/images/": NODES,
    "tests/api/": API,
    "tests/autoscaler/on_api_server/": API,
    "tests/cli/on_api_server/": API,
    "tests/monitoring/on_api_server/": API,
    "tests/crds/": API,
    "tests/helm/": API,
    "tests/operator/": API,
}
"""Group by beginning of the path; the first that fits counts. All other tests stay together by file."""
LONG_FILES = (
    "tests/equality/test_trained_quality.py",
    "tests/engine/server/test_lifecycle.py",
    "tests/equality/test_lattice.py",
    "tests/engine/bench/test_soak.py",
    "tests/equality/test_packed_caches.py",
    "tests/e2e/test_load.py",
    "tests/contracts/test_memory_prediction.py",
    "tests/e2e/test_fuzz.py",
    "tests/cli/test_fleet_scaling.py",
    "tests/cli/test_play.py",
    "tests/equality/test_tiny_models.py",
    "tests/equality/test_trained_models.py",
    "tests/engine/kernels/test_triton_compile.py",
)
"""Of the others those that take longest, which come before the rest: the last one to begin is a short one."""
CLUSTERS = {"node_cluster", "api_cluster"}
"""Fixtures that start one."""


GIVE_WAY = 3
"""Added to the niceness of workers that begin without a cluster: half of the weight of one that has it."""


def give_way(worker: str | None) -> None:
    """Lower this process's priority if it is a worker beyond those that begin with a cluster."""
    if worker is not None and int(worker.removeprefix("gw")) >= len(ORDER):
        os.nice(GIVE_WAY)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Give each group to one worker, the first group to the first worker whichever reports first."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)

    @property
    def nodes(self) -> list[WorkerController]:
        """Return the workers in the order of their numbers, which `give_way` goes by."""
        return sorted(super().nodes, key=lambda worker: int(worker.gateway.id.removeprefix("gw")))

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the group of a test."""
    path = nodeid.split("::", 1)[0]
    return next((group for prefix, group in GROUPS.items() if path.startswith(prefix)), path)


def order_tests(items: list[pytest.Item]) -> None:
    """Bring tests into an order that keeps every worker busy; raises UsageError where a group does not fit a test."""
    for item in items:
        if CLUSTERS & {*getattr(item, "fixturenames", ())} and group_of(item.nodeid) not in ORDER:
            raise pytest.UsageError(f"{item.nodeid} uses a cluster: give its path a group in {__name__}.GROUPS")
    items.sort(key=lambda item: _rank(group_of(item.nodeid)))


def _rank(group: str) -> int:
    order = (*ORDER, *LONG_FILES)
    return order.index(group) if group in order else len(order)
