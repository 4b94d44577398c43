"""One-line plan requests for tests."""

from dataclasses import replace
from typing import Any

from pagefleet.capacity import (
    Allowed,
    CapacityPlan,
    EngineProfile,
    Lengths,
    ModelFacts,
    PinnedKnobs,
    PlanRequest,
    Workload,
    find_accelerator,
    make_plan,
    pagefleet_profile,
    read_model,
)
from pagefleet.capacity.engine_profile import PAGEFLEET_CUDA
from tests.support import checkpoints

EIGHT_BILLION = read_model("Llama-3.1-8B", *checkpoints.llama_3_1_8b())
SMALL_CONFIG, SMALL_HEADERS = checkpoints.dense(
    layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, vocabulary=256, head_dim=16, context=2048
)
SMALL = read_model("small", SMALL_CONFIG, SMALL_HEADERS)

PAST_CUDA: EngineProfile = replace(PAGEFLEET_CUDA, weights=("none",), kv_cache=("float32", "bf16"))
"""An engine without packed weights and caches."""

FUTURE_CUDA: EngineProfile = replace(
    PAGEFLEET_CUDA,
    weights=("none", "int8", "int4"),
    has_tensor_parallelism=True,
)
"""The engine once it has the formats that are planned."""


def request(
    model: ModelFacts = EIGHT_BILLION,
    accelerator: str | None = "h100-80g",
    *,
    memory_bytes: int | None = None,
    engine: EngineProfile | None = None,
    count: int = 1,
    dtype: str = "auto",
    prompt_tokens: float = 512,
    output_tokens: float = 256,
    weights: tuple[str, ...] = ("none",),
    kv_cache: tuple[str, ...] = ("auto",),
    workload: dict[str, Any] | None = None,
    **pinned: Any,
) -> PlanRequest:
    """Return a request; keywords that are no field of it are pinned knobs."""
    found = find_accelerator(accelerator, memory_bytes=memory_bytes)
    lengths = {"prompt_tokens": Lengths(prompt_tokens), "output_tokens": Lengths(output_tokens)}
    return PlanRequest(
        model=model,
        accelerator=found,
        engine=engine or pagefleet_profile(found.kind),
        count=count,
        dtype=dtype,
        workload=Workload(**{**lengths, **(workload or {})}),
        pinned=PinnedKnobs(**pinned),
        allowed=Allowed(weights=weights, kv_cache=kv_cache),
    )


def plan(*arguments: Any, **options: Any) -> CapacityPlan:
    """Return the plan of a request."""
    return make_plan(request(*arguments, **options))
