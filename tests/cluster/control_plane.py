"""The arguments and settings of the control plane: etcd, API server, controller manager, scheduler and DNS."""

import json
from pathlib import Path

from tests.cluster.layout import Layout

NODE_GRACE_S = 20
"""How long a node may be silent before it counts as lost."""

EVICTION_DELAY_S = 10
"""How long pods stay bound to a lost node; Kubernetes' own default of 300 s is no test's time."""

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        # Who is no subject of a test: the cluster itself and its administrator.
        {"level": "None", "userGroups": ["system:masters", "system:nodes", "system:serviceaccounts:kube-system"]},
        {
            "level": "None",
            "users": [
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-proxy",
                "system:kube-scheduler",
            ],
        },
        {"level": "Metadata"},
    ],
}
"""Who called what, for every account that a test made."""


def etcd_arguments(layout: Layout, folder: Path) -> list[str]:
    """Return etcd's arguments; it keeps nothing that a power cut must not take."""
    return [
        "--name=test",
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={layout.etcd_url}",
        f"--advertise-client-urls={layout.etcd_url}",
        f"--listen-peer-urls={layout.etcd_peer_url}",
        f"--initial-advertise-peer-urls={layout.etcd_peer_url}",
        f"--initial-cluster=test={layout.etcd_peer_url}",
    ]


def api_server_arguments(layout: Layout, folder: Path) -> list[str]:
    """Return the API server's arguments."""
    pki = folder / "pki"
    address = [f"--bind-address={layout.host_address}", f"--advertise-address={layout.host_address}"]
    if not layout.node_count:  # no pod will call it, and a loopback address is refused as an endpoint
        address.append("--endpoint-reconciler-type=none")
    return [
        f"--etcd-servers={layout.etcd_url}",
        f"--secure-port={layout.api_port}",
        *address,
        f"--service-cluster-ip-range={layout.service_network}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'service-account.key'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        "--authorization-mode=Node,RBAC",
        # As on OpenShift, who sets a blocking owner reference needs the right to the owner's finalizers.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki / 'front-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        "--enable-aggregator-routing=true",
        f"--default-not-ready-toleration-seconds={EVICTION_DELAY_S}",
        f"--default-unreachable-toleration-seconds={EVICTION_DELAY_S}",
        "--max-requests-inflight=1000",
        "--max-mutating-requests-inflight=500",
        "--profiling=false",
        f"--audit-policy-file={folder / 'audit-policy.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--audit-log-mode=batch",
        "--audit-log-batch-max-wait=1s",
    ]


def controller_manager_arguments(folder: Path) -> list[str]:
    """Return the controller manager's arguments."""
    pki = folder / "pki"
    return [
        f"--kubeconfig={pki / 'controller-manager.kubeconfig'}",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
        "--node-monitor-period=2s",
        "--kube-api-qps=300",
        "--kube-api-burst=500",
        "--horizontal-pod-autoscaler-sync-period=5s",
    ]


def scheduler_arguments(folder: Path) -> list[str]:
    """Return the scheduler's arguments."""
    return [
        f"--kubeconfig={folder / 'pki' / 'scheduler.kubeconfig'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=300",
        "--kube-api-burst=500",
    ]


def write_settings(layout: Layout, folder: Path) -> None:
    """Write the files that the arguments name: the audit policy and the DNS server's settings."""
    (folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY, indent=1))
    (folder / "Corefile").write_text(
        f".:53 {{\n"
        f"  bind {layout.host_address}\n"
        f"  errors\n"
        f"  kubernetes cluster.local {{\n"
        f"    kubeconfig {folder / 'pki' / 'coredns.kubeconfig'}\n"
        f"    ttl 1\n"
        f"  }}\n"
        f"}}\n"
    )
