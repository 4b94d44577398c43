"""The network between the nodes and this machine: a bridge, a network namespace for each node, and routes.

Nothing is forwarded or masqueraded on this machine, and nothing leaves it. What kube-proxy and CNI set up is inside the
nodes' namespaces and goes with them.
"""

import contextlib
import fcntl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import processes
from tests.cluster.layout import Layout
from tests.cluster.paths import ClusterError

_LOCK = "network.lock"


def create(layout: Layout, folder: Path) -> None:
    """Make the network of the cluster in `folder`."""
    with _at_work(folder) as ip:
        _create(layout, ip)


def _create(layout: Layout, ip: Callable[..., None]) -> None:
    ip("link", "add", layout.bridge, "type", "bridge")
    ip("addr", "add", f"{layout.host_address}/24", "dev", layout.bridge)
    ip("link", "set", layout.bridge, "up")
    for node in layout.nodes:
        inside = ("-n", node.network_namespace)
        ip("netns", "add", node.network_namespace)
        peer = ("peer", "name", "eth0", "netns", node.network_namespace)
        ip("link", "add", node.host_device, "type", "veth", *peer)
        ip("link", "set", node.host_device, "master", layout.bridge, "up")
        ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "addr", "add", f"{node.address}/24", "dev", "eth0")
        ip(*inside, "link", "set", "eth0", "up")
        ip(*inside, "route", "add", "default", "via", layout.host_address)
        ip("route", "add", node.pod_network, "via", node.address)
        for other in layout.nodes:
            if other != node:
                ip(*inside, "route", "add", other.pod_network, "via", other.address)
    # Any node's kube-proxy knows all services.
    ip("route", "add", layout.service_network, "via", layout.nodes[0].address)


def remove(layout: Layout, folder: Path) -> None:
    """Remove what `create` made, as far as it came; the processes of the cluster in `folder` must be gone."""
    with contextlib.suppress(FileNotFoundError), (folder / _LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    for node in layout.nodes:
        if Path(f"/run/netns/{node.network_namespace}").exists():
            _ip("netns", "del", node.network_namespace)
        # The namespace goes in its own time, and holds the device's name until then.
        _remove_device(node.host_device)
    _remove_device(layout.bridge)


@contextmanager
def _at_work(folder: Path) -> Iterator[Callable[..., None]]:
    """Give a function that runs `ip` so that none is still at work when a killed run is cleared up.

    Its mark lets it be found; one that was forked and not yet `ip` when its parent was killed holds the lock instead.
    """
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment, descriptors = processes.marked(folder, "network"), (lock.fileno(),)

        def ip(*arguments: str) -> None:
            _ip(*arguments, environment=environment, descriptors=descriptors)

        yield ip


def _remove_device(name: str) -> None:
    if Path(f"/sys/class/net/{name}").exists():
        _ip("link", "del", name, may_fail=True)  # it may go meanwhile with its namespace


def _ip(
    *arguments: str,
    may_fail: bool = False,
    environment: dict[str, str] | None = None,
    descriptors: tuple[int, ...] = (),
) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, env=environment, pass_fds=descriptors)
    if done.returncode and not may_fail:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
