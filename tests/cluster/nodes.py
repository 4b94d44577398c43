"""Nodes: the settings of containerd, kubelet, kube-proxy and CNI, and the start of each node in namespaces of its own.

Inside its mount namespace a node's folders lie at their default paths, as the device plugin socket's path is fixed in
the kubelet; so several nodes, and a containerd of the machine itself, never meet. One SIGKILL ends a whole node.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.cluster import processes
from tests.cluster.build import PAUSE_IMAGE, Programs
from tests.cluster.layout import Layout, NodeLayout
from tests.cluster.machine import MOUNT_POINTS
from tests.cluster.paths import NODE_INIT

FAKE_GPU_MEMORY_MIB = 81920


def node_folder(folder: Path, node: NodeLayout) -> Path:
    """Return where a node keeps its files, in a cluster's folder."""
    return folder / "nodes" / node.name


def write_settings(layout: Layout, node: NodeLayout, folder: Path, programs: Programs) -> None:
    """Write what a node reads at its start."""
    here = node_folder(folder, node)
    here.mkdir(parents=True)
    (here / "images").mkdir()
    (here / "images" / "pause.tar").symlink_to(programs.path("pause.tar"))
    (here / "resolv.conf").touch()  # pods ask the cluster's DNS server alone
    (here / "containerd.toml").write_text(_CONTAINERD)
    shutil.copy(folder / "pki" / f"node-{node.name}.kubeconfig", here / "kubelet.kubeconfig")
    settings = {
        "cni.conflist": _cni(node),
        "kubelet.yaml": _kubelet(layout, node, folder),
        "kube-proxy.yaml": _kube_proxy(layout, folder),
    }
    for name, value in settings.items():
        (here / name).write_text(json.dumps(value, indent=1))  # JSON is YAML


def start(layout: Layout, node: NodeLayout, folder: Path, programs: Programs) -> None:
    """Start a node; its kubelet waits for the file `go` in the node's folder."""
    # With `slave`, what the machine unmounts meanwhile is not held by the node.
    namespaces = ("--mount", "--propagation=slave", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
    processes.start(
        folder,
        node_title(node),
        [
            # `ip netns exec` would mount a new /sys, without the control groups.
            *(_which("nsenter"), f"--net=/run/netns/{node.network_namespace}"),
            *(_which("unshare"), *namespaces),
            *(_which("bash"), NODE_INIT, node_folder(folder, node), programs.folder),
            *(node.name, node.address, str(layout.gpus), _labels(layout), " ".join(MOUNT_POINTS)),
        ],
    )


def node_title(node: NodeLayout) -> str:
    """Return the name of a node's processes."""
    return f"node-{node.name}"


def command_in(node: NodeLayout, folder: Path, *command: str) -> list[str]:
    """Return a command that runs inside a node's mount and network namespaces.

    Raises:
        IndexError: the node does not run.
    """
    process_id = processes.find(folder, node_title(node))[0]
    return [_which("nsenter"), f"--target={process_id}", "--mount", "--net", *command]


def _which(program: str) -> str:
    found = shutil.which(program)
    assert found, f"{program} is missing"  # requirements.py has looked
    return found


def _labels(layout: Layout) -> str:
    labels = {"pagefleet-test/node": "real"}
    if layout.gpus:  # what NVIDIA's GPU feature discovery writes on a node
        labels["nvidia.com/gpu.present"] = "true"
        labels["nvidia.com/gpu.product"] = "Fake-GPU"
        labels["nvidia.com/gpu.count"] = str(layout.gpus)
        labels["nvidia.com/gpu.memory"] = str(FAKE_GPU_MEMORY_MIB)
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _cni(node: NodeLayout) -> dict[str, Any]:
    """Fixed for each node, so that none waits for a pod network from the controller manager."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pod_network}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipMasq": False}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "test", "plugins": [{**bridge, "ipam": addresses}, ports]}


def _kubelet(layout: Layout, node: NodeLayout, folder: Path) -> dict[str, Any]:
    pki = folder / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"kubelet-{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"kubelet-{node.name}.key"),
        "clusterDNS": [layout.host_address],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node_folder(folder, node) / "resolv.conf"),
        # The defaults of 10 to 15 % would evict on a machine whose disk is well used.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        # An imported image that the kubelet removes could not be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        "nodeLeaseDurationSeconds": 10,
        "serializeImagePulls": False,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
    }


def _kube_proxy(layout: Layout, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(folder / "pki" / "kube-proxy.kubeconfig")},
        "clusterCIDR": layout.pod_network,
        "detectLocalMode": "ClusterCIDR",
        # The kernel's settings cannot be written from a network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
        "nftables": {"minSyncPeriod": "0s"},
    }


# restrict_oom_score_adj: where root may not lower the score, runc dies with "can't get final child's PID from pipe".
_CONTAINERD = f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.nri.v1.nri"]
  disable = true

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  max_container_log_line_size = 262144
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
