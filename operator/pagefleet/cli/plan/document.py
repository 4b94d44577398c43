"""A plan as JSON: the plan's own fields, with the numbers that follow from them."""

from dataclasses import asdict
from typing import Any

from pagefleet.capacity import CapacityPlan


def plan_document(plan: CapacityPlan, name: str) -> dict[str, Any]:
    """Return a plan as plain values; what is unknown is null."""
    document = {"name": name, **asdict(plan)}
    document["predicted"] = {
        "memory_bytes": plan.footprint.memory_bytes,
        "weights_bytes": plan.footprint.weights_bytes,
        "activation_bytes": plan.footprint.activation_bytes,
        "overhead_bytes": plan.footprint.runtime_bytes,
        "kv_cache_bytes": plan.kv_cache_bytes,
        "bytes_per_token": plan.kv_bytes_per_token,
        "blocks": plan.blocks,
        "kv_tokens": plan.kv_tokens,
        "full_length_sequences": plan.full_length_sequences,
    }
    return document
