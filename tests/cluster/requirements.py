"""What a machine needs for each tier, and how to get what is missing."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.build import HOW_TO_GET_GO, find_programs, go_version
from tests.cluster.paths import ClusterError

NODE_PACKAGES = ("runc", "containernetworking-plugins", "iptables", "nftables", "iproute2", "procps")
"""Debian's names."""

_NODE_PROGRAMS = ("runc", "iptables", "nft", "ip", "nsenter", "unshare", "sysctl", "bash")
_NETWORK_PLUGINS = Path("/usr/lib/cni")
_HOW_TO_GET_PACKAGES = "run `python -m tests.cluster packages` as root (Debian and its kin)"


def missing_for_api_tier() -> str | None:
    """Return why the control plane cannot run here, or nothing."""
    if find_programs() or go_version():
        return None
    return f"the cluster's programs are not built and Go is missing: {HOW_TO_GET_GO}, or set KUBEBUILDER_ASSETS"


def missing_for_node_tier() -> str | None:
    """Return why nodes cannot run here, or nothing."""
    if not (find_programs(nodes=True) or go_version()):
        return f"the cluster's programs are not built and Go is missing: {HOW_TO_GET_GO}"
    if os.uname().sysname != "Linux":
        return "nodes need Linux: set PAGEFLEET_TEST_KUBECONFIG to a cluster's kubeconfig (kind makes one)"
    if os.geteuid() != 0:
        return (
            "nodes need root: run as root, or set PAGEFLEET_TEST_KUBECONFIG to a cluster's kubeconfig (kind makes one)"
        )
    if missing := missing_packages():
        return f"{missing[0]} is missing: {_HOW_TO_GET_PACKAGES}"
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "root may not make namespaces here: run outside of a container, or in a privileged one"
    return None


def missing_packages() -> list[str]:
    """Return the programs of nodes that are not installed."""
    missing = [name for name in _NODE_PROGRAMS if not shutil.which(name)]
    return missing if (_NETWORK_PLUGINS / "bridge").exists() else [*missing, "the CNI plugin bridge"]


def install_packages() -> None:
    """Install what nodes need, where it is not yet.

    Raises:
        ClusterError: this is no Debian, the user is not root, or apt-get failed.
    """
    if not missing_packages():
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ClusterError(f"{missing_packages()[0]} is missing: install {' '.join(NODE_PACKAGES)} as root")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *NODE_PACKAGES]):
        done = subprocess.run(["apt-get", "--quiet", *arguments], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise ClusterError(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-1000:]}")
