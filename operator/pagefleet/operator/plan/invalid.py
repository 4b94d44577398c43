"""The status of a service that the types refuse although the API server took it: another schema is installed."""

from datetime import datetime
from typing import Any

from pydantic import ValidationError

from pagefleet.api.conditions import PLAN_ACCEPTED, READY, Condition, ConditionStatus, set_condition
from pagefleet.api.manifest_messages import explain, path_text
from pagefleet.api.v1alpha1 import InferenceServiceStatus, ServicePhase

JsonObject = dict[str, Any]
REASON = "InvalidSpec"


def invalid_status(raw: JsonObject, error: ValidationError, now: datetime) -> JsonObject:
    """Return a status that names every mistake; what the old status said beside is kept."""
    message = "; ".join(f"{path_text(one.path)}: {one.message}" for one in explain(error))
    generation = raw["metadata"].get("generation")
    conditions: tuple[Condition, ...] = ()
    try:
        before = InferenceServiceStatus.from_manifest(raw.get("status") or {})
        conditions = before.conditions
    except ValidationError:
        before = InferenceServiceStatus()
    for kind in (PLAN_ACCEPTED, READY):
        conditions = set_condition(
            conditions, kind, ConditionStatus.FALSE, REASON, message, now=now, observed_generation=generation
        )
    changed = {
        "observed_generation": generation,
        "phase": ServicePhase.DEGRADED if before.ready_replicas else ServicePhase.FAILED,
        "reason": REASON,
        "message": message,
        "conditions": conditions,
    }
    return before.model_copy(update=changed).to_manifest()
