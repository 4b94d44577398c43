"""Read what `pagefleet profile --json` wrote: step times for a plan, and the speeds of the machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagefleet.capacity import MeasuredStep
from pagefleet.capacity.step_time import StepTime
from pagefleet.cli.errors import UserMistake
from pagefleet.cli.plan.safetensors_headers import read_json

TERMS = ("base_s", "prefill_token_s", "kv_token_s", "sequence_s")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Hold what a plan takes of a profile; a speed that is None was not measured."""

    measured: MeasuredStep
    bandwidth_gb_per_s: float | None
    tflops: float | None
    device: str | None
    """`cpu` or `cuda`."""
    memory_bytes: int | None
    """Of the accelerator that was measured."""


def read_profile(path: Path) -> Profile:
    """Read a profile; raises UserMistake."""
    try:
        document = read_json(path)
    except UserMistake:
        raise UserMistake(f"--profile {path} cannot be read: write it with pagefleet profile --json FILE") from None
    try:
        return _profile(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserMistake(f"--profile {path} is no profile: write it with pagefleet profile --json FILE") from None


def _profile(document: dict[str, Any]) -> Profile:
    terms = {name: float(document["fit"][name]) for name in TERMS}
    if not all(0 <= value < float("inf") for value in terms.values()) or not terms["prefill_token_s"]:
        raise ValueError("a step takes time")
    machine = document["machine"] or {}
    bandwidth, flops = machine.get("stream_bytes_per_s"), machine.get("gemm_flop_per_s")
    return Profile(
        measured=MeasuredStep(
            step=StepTime(**terms, source="measured"),
            compute_dtype=str(document["dtype"]),
            weights=str(document["weights"]),
            kv_cache=str(document["kv_cache"]),
        ),
        bandwidth_gb_per_s=None if bandwidth is None else float(bandwidth) / 1e9,
        tflops=None if flops is None else float(flops) / 1e12,
        device=document.get("device"),
        memory_bytes=document.get("memory_bytes"),
    )
