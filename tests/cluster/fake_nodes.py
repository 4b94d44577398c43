"""Nodes with no kubelet behind them, for tests of scale: started and removed here, run by `go/fake_nodes.go`."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.cluster import processes

if TYPE_CHECKING:
    from tests.cluster.local_cluster import LocalCluster


class FakeNodes:
    """Nodes with no kubelet behind them; the real scheduler puts pods there, and they seem to run.

    What a pod does is told by its annotations, as durations: `fake/ready-after`, `fake/complete-after`,
    `fake/fail-after`, `fake/stop-after`. The node annotation `fake/dead=true` makes a node fall silent.
    """

    def __init__(self, cluster: "LocalCluster", prefix: str, count: int, gpus: int) -> None:
        self._cluster = cluster
        self._title = f"fake-nodes-{prefix}"
        self.names = [f"{prefix}{number}" for number in range(count)]
        program = cluster.programs.path("fake-nodes")
        shape = ("-prefix", prefix, "-count", str(count), "-gpus", str(gpus))
        processes.start(cluster.folder, self._title, [program, "-kubeconfig", cluster.kubeconfig, *shape])
        cluster.wait(f"{count} fake nodes work", lambda: "ready after" in cluster.log(self._title))

    def remove(self) -> None:
        """Remove the nodes; their pods go with the garbage collector."""
        processes.end(self._cluster.folder, self._title)
        self._cluster.kubectl("delete", "node", "--ignore-not-found", *self.names)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
