"""A service whose pods the test makes itself, with fake engines behind them and the real autoscaler beside it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from pagefleet.api.client import KubernetesClient
from pagefleet.api.labels import service_labels
from pagefleet.api.resources import EVENTS, INFERENCE_SERVICES, PODS
from pagefleet.api.v1alpha1 import PlanStatus
from pagefleet.api.v1alpha1.plan_status import PlanFootprint, PlanStepTime
from tests.autoscaler.fake_engines import FakeEngines
from tests.operator.operator_process import PATIENCE_S, OperatorProcess

Found = TypeVar("Found")

PLAN = PlanStatus(
    block_size=16,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    predicted=PlanFootprint(kv_tokens=410_000),
    step_time=PlanStepTime(
        base_seconds=0.018, prefill_token_seconds=79e-6, kv_token_seconds=35e-9, sequence_seconds=20e-6
    ),
)
"""About 7 requests a second within the objectives, for prompts of 1,155 and answers of 211 tokens."""


class AutoscalerProcess(OperatorProcess):
    """One autoscaler for one namespace; killed at the end of a `with` block."""

    PROGRAM = "autoscaler"


class Fleet:
    """One namespace, seen by its users and by what stands in for operator and kubelets."""

    def __init__(self, client: KubernetesClient, namespace: str, engines: FakeEngines) -> None:
        self.client, self.namespace, self.engines = client, namespace, engines
        self._made = 0
        self.addresses: dict[str, list[str]] = {}
        """Addresses of the running pods of each service."""

    async def serve(
        self, name: str = "chat", *, replicas: int = 1, is_autoscaled: bool = True, **autoscaling: Any
    ) -> None:
        """Make a service with its plan and its pods."""
        spec: dict[str, Any] = {"model": {"uri": "hf://organisation/model"}, "replicas": replicas}
        if is_autoscaled:
            spec["autoscaling"] = {
                "mode": "Active",
                "maxReplicas": 8,
                "slo": {"ttft": "2s", "itl": "100ms"},
                **autoscaling,
            }
        metadata = {"name": name, "namespace": self.namespace}
        await self.client.create(INFERENCE_SERVICES, {"metadata": metadata, "spec": spec})
        await self.client.apply(
            INFERENCE_SERVICES,
            {"metadata": metadata, "status": {"plan": PLAN.to_manifest()}},
            "pagefleet-operator",
            subresource="status",
        )
        self.addresses[name] = []
        for _ in range(replicas):
            await self.add_pod(name)

    async def add_pod(self, service: str = "chat") -> str:
        """Make a pod that is ready, as a kubelet would; return its uid."""
        address = self.engines.addresses[self._made]
        self._made += 1
        name = f"{service}-{self._made}"
        pod = await self.client.create(
            PODS,
            {
                "metadata": {"name": name, "namespace": self.namespace, "labels": service_labels(service)},
                # No scheduler looks at it, and no node is expected to have it.
                "spec": {"schedulerName": "none", "containers": [{"name": "engine", "image": "none"}]},
            },
        )
        report = self.engines.reports[address]
        assert isinstance(report, dict)
        report["pod_uid"] = pod["metadata"]["uid"]
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": moment}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}
        await self.client.patch_merge(PODS, self.namespace, name, {"status": status}, subresource="status")
        self.addresses[service].append(address)
        return str(pod["metadata"]["uid"])

    async def get(self, name: str = "chat") -> dict[str, Any]:
        """Return a service."""
        found = await self.client.get(INFERENCE_SERVICES, self.namespace, name)
        assert found is not None
        return found

    async def status(self, name: str = "chat") -> dict[str, Any]:
        """Return what the autoscaler says of a service."""
        status: dict[str, Any] = ((await self.get(name)).get("status") or {}).get("autoscaling") or {}
        return status

    async def replicas(self, name: str = "chat") -> int:
        """Return the number that is asked for."""
        return int((await self.get(name))["spec"]["replicas"])

    async def scale(self, replicas: int, name: str = "chat", *, manager: str = "kubectl-scale") -> None:
        """Set the number as somebody else."""
        await self.client.patch_merge(
            INFERENCE_SERVICES,
            self.namespace,
            name,
            {"spec": {"replicas": replicas}},
            subresource="scale",
            field_manager=manager,
        )

    async def set_mode(self, mode: str, name: str = "chat") -> None:
        """Set the mode as a user does."""
        body = {"spec": {"autoscaling": {"mode": mode}}}
        await self.client.patch_merge(INFERENCE_SERVICES, self.namespace, name, body, field_manager="kubectl-edit")

    async def events(self) -> list[tuple[str, str]]:
        """Return reason and message of every event of the autoscaler."""
        items = (await self.client.list(EVENTS, self.namespace)).items
        ours = [one for one in items if one["source"].get("component") == "pagefleet-autoscaler"]
        return [(one["reason"], one["message"]) for one in sorted(ours, key=lambda one: one["metadata"]["name"])]

    async def load(self, rate_per_s: float, name: str = "chat") -> None:
        """Let the replicas of a service share a rate of requests until cancelled; new ones get theirs."""
        owed = 0.0
        while True:
            await asyncio.sleep(0.5)
            owed += rate_per_s * 0.5 / max(1, len(self.addresses[name]))
            for address in self.addresses[name]:
                self.engines.serve_requests(address, int(owed))
            owed -= int(owed)


async def wait_until(what: str, find: Callable[[], Awaitable[Found | None]], timeout_s: float = PATIENCE_S) -> Found:
    """Return what `find` finds once it is true; fail with the last finding after a time."""
    found = None
    try:
        async with asyncio.timeout(timeout_s):
            while not (found := await find()):  # noqa: ASYNC110 - it asks a server
                await asyncio.sleep(0.25)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {what}; last: {found!r}") from None
    return found
