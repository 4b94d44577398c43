"""The rights that the chart grants are those that the operator uses: the API server's audit log has the last word."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pagefleet.api.labels import SERVICE_LABEL
from tests.cluster.cluster import Cluster
from tests.cluster.paths import ClusterError
from tests.helm.chart import CHART, Object, objects

Right = tuple[str, str, str]
"""Verb, API group, resource with its subresource."""

UNSEEN: dict[Right, str] = {
    (
        "update",
        "serving.pagefleet.io",
        "inferenceservices/finalizers",
    ): "judged by an admission plugin, not by a request",
}
"""Rights that no request shows, each with its reason."""

UNSEEN_OF_AUTOSCALER: dict[Right, str] = {
    ("get", "serving.pagefleet.io", "inferenceservices"): "only where somebody writes in the same moment",
}

NO_PODS = ("--set=operator.replicas=0", "--set=autoscaler.replicas=0")

SERVICE = """
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata: {{name: chat}}
spec:
  model: {{uri: "hf://example/chat"}}
  engine: {{maxNumSeqs: {sequences}}}
"""


def granted(rendered: list[Object], component: str) -> set[Right]:
    """Return every right that a rendering's roles give to a component."""
    rules = [
        rule
        for document in rendered
        if document["kind"] in ("Role", "ClusterRole")
        and document["metadata"]["labels"]["app.kubernetes.io/component"] == component
        for rule in document["rules"]
    ]
    return {
        (verb, group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(audit_log: Path, user: str) -> tuple[set[Right], list[str]]:
    """Return the rights that a user's requests took, and those that were refused."""
    rights: set[Right] = set()
    refused = []
    for line in audit_log.read_text().splitlines():
        event = json.loads(line)
        target = event.get("objectRef")
        if event["user"]["username"] != user or not target or "resource" not in target:
            continue
        resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        code = event["responseStatus"]["code"]
        if code == 403:
            refused.append(f"{event['verb']} {resource}")
            continue
        rights.add((event["verb"], target.get("apiGroup", ""), resource))
        if event["verb"] == "patch" and code == 201:  # server-side apply of a new object takes both
            rights.add(("create", target.get("apiGroup", ""), resource))
    return rights, refused


@contextmanager
def running(program: str, cluster: Cluster, namespace: str, account: str, log: Path) -> Iterator[None]:
    """Run operator or autoscaler on this machine as the chart's account; a failure tells what it said last."""
    kubeconfig = cluster.account_kubeconfig(namespace, account)
    environment = {
        **os.environ,
        "PAGEFLEET_NAMESPACE": namespace,
        "PAGEFLEET_ENGINE_IMAGE": "localhost/engine:1",
        "PAGEFLEET_HUB": "off",
    }
    command = [sys.executable, "-m", "pagefleet.cli", program, "run", f"--kubeconfig={kubeconfig}", "--http-port=0"]
    with log.open("w") as file:  # a pipe that nobody reads would fill up and stop it
        process = subprocess.Popen(command, env=environment, stderr=file)
    try:
        yield
    except (AssertionError, ClusterError) as error:
        raise AssertionError(f"{error}; it said: {log.read_text()[-4000:]}") from error
    finally:
        process.terminate()
        process.wait(timeout=90)


def wait_until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition, and tell whether it came true."""
    end_s = time.monotonic() + timeout_s
    while not (came_true := holds()) and time.monotonic() < end_s:
        time.sleep(0.25)
    return came_true


@pytest.mark.usefixtures("optional_kinds")
def test_the_operator_uses_what_it_is_granted_and_nothing_else(api_cluster: Cluster, tmp_path: Path) -> None:
    with api_cluster.fake_nodes(1, prefix="rbac"), api_cluster.namespace("rbac") as namespace:
        where, user = f"--namespace={namespace}", f"system:serviceaccount:{namespace}:fleet-pagefleet"

        def revisions() -> list[str]:
            selector = f"--selector={SERVICE_LABEL}=chat"
            return api_cluster.kubectl("get", "controllerrevision", where, selector, "--output=name").stdout.split()

        api_cluster.helm("install", "fleet", str(CHART), where, *NO_PODS, "--take-ownership")
        try:
            # The API server learns of new roles a moment later, and the operator looks at kinds once, at its start.
            can_list = ("auth", "can-i", "list", "inferencepools.inference.networking.k8s.io", f"--as={user}")
            assert wait_until(lambda: api_cluster.kubectl(*can_list, check=False).returncode == 0, 90)
            rights = granted(objects(api_cluster.helm("get", "manifest", "fleet", where).stdout), "operator")
            with running("operator", api_cluster, namespace, "fleet-pagefleet", tmp_path / "operator.log"):
                for sequences in (8, 16):  # the second makes a revision, and the first one's objects go
                    api_cluster.kubectl("apply", where, "-f", "-", input=SERVICE.format(sequences=sequences))
                    api_cluster.kubectl("wait", "--for=condition=Ready", "pf/chat", where, "--timeout=240s")
                assert wait_until(lambda: len(revisions()) == 1, 180), "the first revision stays"
                wait_until(lambda: rights <= used(api_cluster.audit_log, user)[0] | {*UNSEEN}, 30)
        finally:
            api_cluster.kubectl("delete", "pf", "--all", where)
            api_cluster.helm("uninstall", "fleet", where, "--wait")
        seen, refused = used(api_cluster.audit_log, user)
    assert refused == []
    assert sorted(seen - rights) == []
    assert sorted(rights - seen - {*UNSEEN}) == []


SCALED = """
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {uri: "hf://example/chat"}
  autoscaling: {minReplicas: 2, maxReplicas: 3}
"""


def test_the_autoscaler_uses_what_it_is_granted_and_nothing_else(api_cluster: Cluster, tmp_path: Path) -> None:
    with api_cluster.namespace("rbac") as namespace:
        where, account = f"--namespace={namespace}", "fleet-pagefleet-autoscaler"
        user = f"system:serviceaccount:{namespace}:{account}"
        api_cluster.helm("install", "fleet", str(CHART), where, *NO_PODS, "--take-ownership")
        try:
            can_list = ("auth", "can-i", "list", "pods", f"--as={user}")
            assert wait_until(lambda: api_cluster.kubectl(*can_list, check=False).returncode == 0, 90)
            rights = granted(objects(api_cluster.helm("get", "manifest", "fleet", where).stdout), "autoscaler")
            with running("autoscaler", api_cluster, namespace, account, tmp_path / "autoscaler.log"):
                api_cluster.kubectl("apply", where, "-f", "-", input=SCALED)
                api_cluster.kubectl("wait", "--for=jsonpath={.spec.replicas}=2", "pf/chat", where, "--timeout=90s")
                wait_until(lambda: rights <= used(api_cluster.audit_log, user)[0] | {*UNSEEN_OF_AUTOSCALER}, 30)
        finally:
            api_cluster.kubectl("delete", "pf", "--all", where)
            api_cluster.helm("uninstall", "fleet", where, "--wait")
        seen, refused = used(api_cluster.audit_log, user)
    assert refused == []
    assert sorted(seen - rights) == []
    assert sorted(rights - seen - {*UNSEEN_OF_AUTOSCALER}) == []
