"""The chart on a real cluster: installed, upgraded, rolled back and uninstalled, with the operator's own image."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.cluster import Cluster
from tests.helm.chart import CHART, NAMESPACE, VALUE_SETS, Object, objects, render
from tests.images.build import BuiltImage, build_thin, why_not

SERVER_SIDE = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")

SERVICE = """
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata: {name: kept}
spec: {model: {uri: "hf://example/none"}, replicas: 0}
"""


def restricted_namespace(cluster: Cluster, name: str) -> None:
    """Refuse pods that are not restricted, and warn of templates that would make such pods."""
    modes = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    cluster.kubectl("label", "namespace", name, *modes)


@pytest.mark.usefixtures("optional_kinds")
@pytest.mark.parametrize("values", VALUE_SETS)
def test_the_api_server_accepts_every_object(api_cluster: Cluster, values: str) -> None:
    with api_cluster.namespace("chart") as namespace:
        restricted_namespace(api_cluster, namespace)
        rendered = render(values).replace(f"namespace: {NAMESPACE}", f"namespace: {namespace}")
        done = api_cluster.kubectl("apply", *SERVER_SIDE, "-f", "-", input=rendered)
    assert done.stderr == "", "no warning, of pod security or of anything else"
    assert len(done.stdout.splitlines()) == len(objects(rendered))


@dataclass(frozen=True)
class Release:
    """An installed chart."""

    cluster: Cluster
    namespace: str
    image: BuiltImage

    def helm(self, *arguments: str) -> str:
        """Run helm in the release's namespace and return its output."""
        return self.cluster.helm(*arguments, f"--namespace={self.namespace}").stdout

    def change(self, command: str, *values: str) -> str:
        """Install or upgrade, and wait until every pod is ready."""
        repository, _, tag = self.image.reference.rpartition(":")
        own = [f"operator.image.repository={repository}", f"operator.image.tag={tag}"]
        flags = [part for value in (*own, *values) for part in ("--set", value)]
        # Other tests may have installed the CRD before: the release takes it over.
        return self.helm(command, "fleet", str(CHART), "--take-ownership", "--wait", "--timeout=240s", *flags)

    def get(self, *arguments: str) -> Object:
        """Return what kubectl get finds in the release's namespace."""
        found: Object = json.loads(
            self.cluster.kubectl("get", *arguments, f"--namespace={self.namespace}", "--output=json").stdout
        )
        return found


@pytest.fixture(scope="module")
def release(node_cluster: Cluster) -> Iterator[Release]:
    """Return a namespace for the release, with the operator's image on every node."""
    if reason := why_not():
        pytest.skip(reason)
    image = build_thin("operator")
    for archive in image.archives:
        node_cluster.import_image(archive)
    with node_cluster.namespace("fleet") as namespace:
        restricted_namespace(node_cluster, namespace)
        try:
            yield Release(node_cluster, namespace, image)
        finally:
            node_cluster.helm("uninstall", "fleet", f"--namespace={namespace}", "--wait", "--ignore-not-found")


def test_a_release_from_install_to_uninstall(release: Release, measured: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    notes = release.change("install")
    measured(f"helm install --wait of 2 operator replicas: {time.monotonic() - began_s:.1f} s")
    assert "kubectl" in notes
    assert "rollout status deployment/fleet-pagefleet" in notes

    deployment = release.get("deployment", "fleet-pagefleet")
    assert deployment["status"]["readyReplicas"] == 2
    pods = release.get("pods")["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert sum(container["restartCount"] for pod in pods for container in pod["status"]["containerStatuses"]) == 0
    lease = release.get("lease", "pagefleet-operator")
    assert lease["spec"]["holderIdentity"] in {pod["metadata"]["name"] for pod in pods}

    release.cluster.kubectl("apply", f"--namespace={release.namespace}", "-f", "-", input=SERVICE)
    release.cluster.kubectl(
        "wait", "--for=jsonpath={.status.observedGeneration}=1", "pf/kept", f"--namespace={release.namespace}"
    )

    release.change("upgrade", "operator.logLevel=debug")
    release.helm("rollback", "fleet", "1", "--wait", "--timeout=240s")
    environment = release.get("deployment", "fleet-pagefleet")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "PAGEFLEET_LOG_LEVEL", "value": "INFO"} in environment

    release.helm("uninstall", "fleet", "--wait", "--cascade=foreground")
    left = release.get(
        "all,serviceaccount,role,rolebinding,networkpolicy,poddisruptionbudget", "-lapp.kubernetes.io/instance=fleet"
    )
    assert left["items"] == []
    cluster_wide = release.get("clusterrole,clusterrolebinding", "-lapp.kubernetes.io/instance=fleet")
    assert cluster_wide["items"] == []
    assert release.get("pf", "kept")["metadata"]["name"] == "kept", "users' objects outlive the release"

    release.change("install", "operator.replicas=1")  # the kept CRD is taken over
    release.helm("uninstall", "fleet", "--wait")


def test_a_namespaced_release_serves_its_namespace_alone(release: Release) -> None:
    release.change("install", "namespaced=true", "operator.replicas=1")
    try:
        with release.cluster.namespace("other") as other:
            for namespace in (release.namespace, other):
                text = SERVICE.replace("kept", "scoped")
                release.cluster.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=text)
            release.cluster.kubectl(
                "wait", "--for=jsonpath={.status.observedGeneration}=1", "pf/scoped", f"--namespace={release.namespace}"
            )
            seen = release.cluster.kubectl("get", "pf/scoped", f"--namespace={other}", "-o=jsonpath={.status}").stdout
            assert seen == ""
            log = release.cluster.kubectl("logs", "deployment/fleet-pagefleet", f"--namespace={release.namespace}")
            assert "Traceback" not in log.stdout
    finally:
        release.helm("uninstall", "fleet", "--wait")
