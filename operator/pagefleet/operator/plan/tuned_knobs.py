"""The engine's knobs that the planner may choose for a service, and how they join the user's."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pagefleet.api.v1alpha1 import InferenceService, KvCacheDtype, WeightQuantization


@dataclass(frozen=True, slots=True)
class TunedKnobs:
    """Hold what is chosen; None is left to the engine.

    `max_model_len` is not among them: the engine fits it to what it measures, and a predicted one that is a block too
    long would keep it from starting.
    """

    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    weights: str | None = None
    kv_cache: str | None = None
    gpu_memory_utilization: float | None = None
    """Chosen for the objective memory alone: others leave nothing of it to spare."""

    def as_fields(self) -> dict[str, str]:
        """Return the chosen values as texts, by their fields under `spec`."""
        return {_FIELDS[name]: str(value) for name, value in asdict(self).items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the chosen values, as a stored revision keeps them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "TunedKnobs":
        """Read what `to_json` wrote; what another version wrote beside it is left out."""
        return cls(**{name: stored[name] for name in _FIELDS if name in stored})


NO_KNOBS = TunedKnobs()

_FIELDS = {
    "block_size": "engine.blockSize",
    "max_num_seqs": "engine.maxNumSeqs",
    "max_num_batched_tokens": "engine.maxNumBatchedTokens",
    "weights": "engine.weights.quantization",
    "kv_cache": "engine.kvCache.dtype",
    "gpu_memory_utilization": "engine.gpuMemoryUtilization",
}


def with_knobs(service: InferenceService, knobs: TunedKnobs) -> InferenceService:
    """Return a service as its pods are rendered: the user's values, and the chosen ones where there are none."""
    if knobs == NO_KNOBS:
        return service
    engine = service.spec.engine
    weights = engine.weights.quantization or (WeightQuantization(knobs.weights) if knobs.weights else None)
    kv_cache = engine.kv_cache.dtype or (KvCacheDtype(knobs.kv_cache) if knobs.kv_cache else None)
    tuned = engine.model_copy(
        update={
            "block_size": engine.block_size or knobs.block_size,
            "max_num_seqs": engine.max_num_seqs or knobs.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens or knobs.max_num_batched_tokens,
            "weights": engine.weights.model_copy(update={"quantization": weights}),
            "kv_cache": engine.kv_cache.model_copy(update={"dtype": kv_cache}),
            "gpu_memory_utilization": engine.gpu_memory_utilization or knobs.gpu_memory_utilization,
        }
    )
    return service.model_copy(update={"spec": service.spec.model_copy(update={"engine": tuned})})
