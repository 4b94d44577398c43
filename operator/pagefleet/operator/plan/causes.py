"""Why replicas do not answer: one reason and one sentence, from what scheduler, kubelet and engine said.

Of several replicas the worst cause speaks, in this order: what waiting won't help, what somebody must free or fix, what
passes by itself.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from pagefleet.api.capacity import EnginePhase
from pagefleet.api.v1alpha1 import InferenceServiceSpec, ServicePhase
from pagefleet.operator.plan.observed import Accelerators, Observed, PodRecord, Progress

LONGEST_QUOTE = 600
"""Characters of somebody else's sentence that are passed on."""
EXIT_CANNOT_START = 2
"""The engine's exit code for a mistake in its settings or model: its last line is a sentence for users."""
SLOW_CREATION_S = 60
"""Time after which a container that is still being created is worth a word: volumes and images take seconds."""

_IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CONFIG_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_ENGINE_PHASES = {
    EnginePhase.STARTING: ServicePhase.STARTING,
    EnginePhase.DOWNLOADING: ServicePhase.DOWNLOADING,
    EnginePhase.LOADING: ServicePhase.LOADING,
    EnginePhase.READY: ServicePhase.LOADING,
    EnginePhase.DRAINING: ServicePhase.DRAINING,
    EnginePhase.FAILED: ServicePhase.FAILED,
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a replica does not answer."""

    rank: int
    """The lower, the more it matters."""
    reason: str
    message: str
    phase: ServicePhase
    is_hopeless: bool = False
    """Waiting won't help: somebody must change something."""
    progress: float = 0.0
    """Of two equal causes the one further on speaks."""


def find_cause(
    spec: InferenceServiceSpec,
    observed: Observed,
    pods: tuple[PodRecord, ...],
    *,
    now: datetime,
    deadline_s: float,
) -> Cause | None:
    """Return why some of these pods, or pods that could not be made, do not answer; None where all do."""
    causes = [_refused(observed)] + [
        _cause(spec, pod, observed.progress.get(pod.uid), now=now, deadline_s=deadline_s) for pod in pods
    ]
    found = sorted((cause for cause in causes if cause), key=lambda cause: (cause.rank, -cause.progress))
    if not found:
        return None
    if found[0].reason in ("InsufficientAccelerators", "Unschedulable"):
        waiting = [pod for pod in pods if pod.unschedulable and not pod.is_terminating]
        return _unschedulable(spec, waiting, len(pods), observed.accelerators)
    return found[0]


def _refused(observed: Observed) -> Cause | None:
    failure = next((one.failure for one in observed.replica_sets if one.failure and not one.is_terminating), None)
    if failure is None:
        return None
    message = f"the cluster refuses new pods: {_quote(failure)}; change the quota or policy, or spec.template"
    return Cause(10, "PodsRefused", message, ServicePhase.PENDING, is_hopeless=True)


def _cause(
    spec: InferenceServiceSpec, pod: PodRecord, progress: Progress | None, *, now: datetime, deadline_s: float
) -> Cause | None:
    if pod.is_ready or pod.is_terminating:
        return None
    if cause := _image_or_configuration(pod) or _crash(pod):
        return cause
    if pod.unschedulable:
        # Only ranks it: the sentence is about all pods that wait.
        return Cause(40, _unschedulable_reason(spec, pod), "", ServicePhase.PENDING)
    if progress is not None and pod.is_running:
        return _starting(progress, deadline_s)
    age_s = (now - pod.created).total_seconds()
    if pod.node and not pod.is_running and age_s > SLOW_CREATION_S:
        message = (
            f"replica {pod.name} on {pod.node} is still being created after {age_s // SLOW_CREATION_S:.0f} min: "
            f"an image that is pulled, or a volume or secret that is missing; kubectl describe pod {pod.name} tells"
        )
        return Cause(50, "CreatingContainer", message, ServicePhase.STARTING)
    where = f"starts on {pod.node}" if pod.node else "waits for a node"
    return Cause(
        70, "Starting", f"replica {pod.name} {where}", ServicePhase.STARTING if pod.node else ServicePhase.PENDING
    )


def _image_or_configuration(pod: PodRecord) -> Cause | None:
    if pod.waiting_reason in _IMAGE_REASONS:
        message = (
            f"the image of replica {pod.name} can't be pulled: {_quote(pod.waiting_message or pod.waiting_reason)}"
        )
        return Cause(20, "ImagePullFailed", message, ServicePhase.FAILED, is_hopeless=True)
    if pod.waiting_reason in _CONFIG_REASONS:
        detail = _quote(pod.waiting_message or pod.waiting_reason)
        message = f"replica {pod.name} can't be created: {detail}; create what is missing, it then starts by itself"
        return Cause(20, "ConfigurationMissing", message, ServicePhase.FAILED, is_hopeless=True)
    return None


def _crash(pod: PodRecord) -> Cause | None:
    ended = pod.ended
    if ended is None or (ended.exit_code == 0 and ended.reason != "OOMKilled"):
        return None
    line = last_line(ended.message)
    again = f", {pod.restarts} restarts so far" if pod.restarts else ""
    if ended.reason == "OOMKilled":
        message = (
            f"replica {pod.name} was killed for its memory{again}; raise the engine container's memory limit in "
            "spec.template, or lower engine.gpuMemoryUtilization or maxModelLen"
        )
        return Cause(25, "OutOfMemory", message, ServicePhase.FAILED, is_hopeless=True)
    if ended.exit_code == EXIT_CANNOT_START:
        message = line or "the engine cannot start with these settings, and left no message"
        return Cause(25, "EngineCannotStart", _quote(message), ServicePhase.FAILED, is_hopeless=True)
    said = f": {_quote(line)}" if line else f"; kubectl logs --previous {pod.name} has more"
    message = f"replica {pod.name} ended with exit code {ended.exit_code}{again}{said}"
    return Cause(25, "EngineCrashed", message, ServicePhase.FAILED, is_hopeless=True)


def _starting(progress: Progress, deadline_s: float) -> Cause:
    report = progress.report
    phase = _ENGINE_PHASES.get(report.phase, ServicePhase.STARTING)
    said = report.detail or str(report.phase)
    if report.phase is EnginePhase.FAILED:
        return Cause(25, "EngineFailed", _quote(said), phase, is_hopeless=True)
    if progress.unchanged_s > deadline_s:
        stuck = f"{said}, and no headway for {progress.unchanged_s / 60:.0f} min; deleting the pod starts it again"
        return Cause(30, "StartupStalled", stuck, phase, is_hopeless=True)
    return Cause(60, str(phase), said, phase, progress=report.progress or 0.0)


def _unschedulable_reason(spec: InferenceServiceSpec, pod: PodRecord) -> str:
    resource = spec.accelerator.resource
    short = resource is not None and f"Insufficient {resource}" in (pod.unschedulable or "")
    return "InsufficientAccelerators" if short else "Unschedulable"


def _unschedulable(
    spec: InferenceServiceSpec, waiting: list[PodRecord], replicas: int, accelerators: Accelerators | None
) -> Cause:
    said = _quote(waiting[0].unschedulable or "")
    who = f"{len(waiting)} of {replicas} replicas wait{'s' if len(waiting) == 1 else ''} for a node"
    if any(_unschedulable_reason(spec, pod) == "InsufficientAccelerators" for pod in waiting):
        resource, missing = spec.accelerator.resource, len(waiting) * spec.accelerator.count
        total = "" if accelerators is None else f" of {accelerators.allocatable} in the cluster none is free"
        total = total or " none is free"
        message = (
            f"{missing} {resource} {'is' if missing == 1 else 'are'} missing: {who}, each needs "
            f"{spec.accelerator.count},{total}; add nodes, lower spec.replicas, or stop another service ({said})"
        )
        return Cause(40, "InsufficientAccelerators", message, ServicePhase.PENDING, is_hopeless=False)
    if claim := re.search(r'persistentvolumeclaim "([^"]+)" not found', said):
        message = (
            f"volume claim {claim[1]} does not exist in this namespace; create it, the replica then starts by itself"
        )
        return Cause(40, "VolumeClaimMissing", message, ServicePhase.PENDING, is_hopeless=True)
    return Cause(40, "Unschedulable", f"{who}: {said}", ServicePhase.PENDING)


def last_line(text: str) -> str:
    """Return the last line of a log that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _quote(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 1]}…"
