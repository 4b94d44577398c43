"""The control plane alone: fake nodes run pods, accounts are audited, and it survives a restart of its API server."""

import json
import time

import yaml

from tests.cluster.cluster import Cluster


def deployment(replicas: int, gpus: int) -> str:
    container = {"name": "main", "image": "none:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    labels = {"app": "big"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return yaml.safe_dump({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "big"}, "spec": spec})


def test_fake_nodes_run_what_fits(api_cluster: Cluster) -> None:
    with api_cluster.fake_nodes(10, gpus=4), api_cluster.namespace() as namespace:
        here = f"--namespace={namespace}"
        api_cluster.kubectl("apply", "--filename=-", here, input=deployment(replicas=20, gpus=2))
        api_cluster.kubectl("rollout", "status", "deployment/big", "--timeout=90s", here)
        api_cluster.kubectl("scale", "deployment/big", "--replicas=21", here)
        one_missing = "jsonpath={.status.unavailableReplicas}=1"
        api_cluster.kubectl("wait", f"--for={one_missing}", "--timeout=90s", "deployment/big", here)
        refusal = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable"
        pending = "--field-selector=status.phase=Pending"
        api_cluster.kubectl("wait", f"--for={refusal}", "--timeout=90s", "pods", pending, here)


def test_silent_fake_nodes_come_back(api_cluster: Cluster) -> None:
    """The node controller takes a node for lost when a busy machine renews its lease too late."""
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    with api_cluster.fake_nodes(1) as nodes:
        node = f"node/{nodes.names[0]}"
        api_cluster.kubectl("patch", node, "--subresource=status", "--type=strategic", f"--patch={json.dumps(lost)}")
        api_cluster.kubectl("wait", "--for=condition=Ready", "--timeout=90s", node)


def test_audit_log_tells_what_an_account_did(api_cluster: Cluster) -> None:
    with api_cluster.namespace() as namespace:
        account = f"system:serviceaccount:{namespace}:default"
        login = f"--kubeconfig={api_cluster.account_kubeconfig(namespace)}"
        refused = api_cluster.kubectl(login, "get", "pods", f"--namespace={namespace}", check=False)
        assert "forbidden" in refused.stderr
        deadline = time.monotonic() + 10
        calls: list[tuple[str, str, int]] = []
        while not calls and time.monotonic() < deadline:
            events = [json.loads(line) for line in api_cluster.audit_log.read_text().splitlines()]
            calls = [
                (event["verb"], event["objectRef"]["resource"], event["responseStatus"]["code"])
                for event in events
                if event["user"]["username"] == account and "objectRef" in event
            ]
            time.sleep(0.1)
    assert ("list", "pods", 403) in calls


def test_objects_survive_a_restart_of_the_api_server(api_cluster: Cluster) -> None:
    with api_cluster.namespace() as namespace:
        api_cluster.kubectl("create", "configmap", "kept", f"--namespace={namespace}")
        api_cluster.local.restart_api_server()
        assert api_cluster.kubectl("get", "configmap", "kept", "--output=name", f"--namespace={namespace}").stdout


def test_helm_is_there(api_cluster: Cluster) -> None:
    assert api_cluster.helm("list", "--output=json").stdout.strip() == "[]"
