"""Start clusters, remove them, and clear what dead test runs left."""

import json
import shutil
import time
from collections.abc import Callable

from tests.cluster import certificates, cgroups, control_plane, machine, network, nodes, processes, records
from tests.cluster.build import Programs
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.paths import STATE
from tests.cluster.records import Owner, Record

Report = Callable[[str], None]


def silent(_: str) -> None:
    """Report to nobody."""


def up(
    name: str,
    programs: Programs,
    *,
    node_count: int = 0,
    gpus: int = 0,
    owner: Owner | None = None,
    report: Report = silent,
) -> LocalCluster:
    """Start a cluster and return when it takes pods: without nodes the control plane alone, which needs no root.

    Raises:
        ClusterError: something did not start; what did is removed.
    """
    record = records.claim(name, node_count=node_count, gpus=gpus, owner=owner)
    try:
        cluster = LocalCluster(record, programs)
        _start(cluster, report)
    except BaseException:
        if owner:  # by hand one wants to read the logs
            down(record)
        raise
    return cluster


def down(record: Record) -> None:
    """Remove a cluster and everything that it made on the machine.

    Raises:
        ClusterError: something did not go; a second call goes on where this one stopped.
    """
    layout = record.layout
    processes.end(record.folder)
    if layout.node_count:
        network.remove(layout, record.folder)
        for node in layout.nodes:
            cgroups.remove(node)
    with records.locked():
        records.forget(record)
        if not any(other.layout.node_count for other in records.read_all()):
            machine.restore()


def clear_left_overs() -> list[str]:
    """Remove the clusters of test runs that are gone, however they ended, and return their names.

    Of runs that begin together one clears up and the others wait: two that removed the same devices, control groups
    and folders would trip over each other.
    """
    if not STATE.exists():
        return []
    with records.locked("clearing.lock"):
        left_over = [record for record in records.read_all() if record.is_left_over]
        for record in left_over:
            down(record)
        with records.locked():
            for folder in STATE.iterdir():  # of a run that ended between its first two steps
                if folder.is_dir() and records.read(folder.name) is None:
                    shutil.rmtree(folder)
    return [record.layout.name for record in left_over]


def _start(cluster: LocalCluster, report: Report) -> None:
    layout, folder = cluster.layout, cluster.folder
    began = time.monotonic()

    def step(what: str) -> None:
        report(f"{time.monotonic() - began:5.1f} s  {what}")

    if layout.node_count:
        with records.locked():
            machine.prepare()
        network.create(layout, folder)
    certificates.write_certificates(layout, folder / "pki")
    control_plane.write_settings(layout, folder)
    _start_program(cluster, "etcd", control_plane.etcd_arguments(layout, folder))
    for node in layout.nodes:  # containerd and its images get ready while the API server does
        cgroups.create(node)
        nodes.write_settings(layout, node, folder, cluster.programs)
        nodes.start(layout, node, folder, cluster.programs)
    cluster.start_api_server()
    step("the API server is ready")
    # Before that they would only ask again and again, and the controller manager ends after 10 s without an answer.
    _start_program(cluster, "kube-controller-manager", control_plane.controller_manager_arguments(folder))
    _start_program(cluster, "kube-scheduler", control_plane.scheduler_arguments(folder))
    for node in layout.nodes:
        (nodes.node_folder(folder, node) / "go").touch()
    if layout.node_count:
        _start_program(cluster, "coredns", ["-conf", str(folder / "Corefile")])
    if cluster.has_controllers:
        cluster.wait(
            "the controller manager works", lambda: cluster.get("/api/v1/namespaces/default/serviceaccounts/default")
        )
        step("the controller manager works")
    for node in layout.nodes:
        _wait_node(cluster, node.name)
        step(f"{node.name} is Ready")


def _start_program(cluster: LocalCluster, name: str, arguments: list[str]) -> None:
    if cluster.programs.has(name):  # KUBEBUILDER_ASSETS holds etcd, the API server and kubectl alone
        processes.start(cluster.folder, name, [cluster.programs.path(name), *arguments])


def _wait_node(cluster: LocalCluster, name: str) -> None:
    def ready() -> bool:
        node = json.loads(cluster.get(f"/api/v1/nodes/{name}") or "{}")
        conditions = {entry["type"]: entry["status"] for entry in node.get("status", {}).get("conditions", [])}
        return conditions.get("Ready") == "True"

    cluster.wait(f"{name} is Ready", ready)
