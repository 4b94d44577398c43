"""The ControllerRevision of one revision: its pinned pod template, and who rendered it from which spec."""

import json
from datetime import datetime
from typing import Any

from pagefleet.api.labels import REVISION_LABEL, revision_labels
from pagefleet.api.resources import CONTROLLER_REVISIONS
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.names import revision_name
from pagefleet.operator.plan.observed import RevisionRecord
from pagefleet.operator.plan.revision import Revision
from pagefleet.operator.plan.tuned_knobs import NO_KNOBS, TunedKnobs

JsonObject = dict[str, Any]


def render_controller_revision(service: InferenceService, revision: Revision) -> Intent:
    """Return the stored form of a revision. Its data can't be changed once written."""
    name = service.metadata.name
    return make_intent(
        CONTROLLER_REVISIONS,
        service,
        revision_name(name, revision.revision),
        {
            "revision": revision.number,
            "data": {
                "operatorVersion": revision.operator_version,
                "specHash": revision.spec_hash,
                "template": revision.template,
                **({"knobs": revision.knobs.to_json()} if revision.knobs != NO_KNOBS else {}),
            },
        },
        labels=revision_labels(name, revision.revision),
    )


def read_controller_revision(item: JsonObject) -> RevisionRecord | None:
    """Return the revision that an object stores, or None where it is not one of ours."""
    metadata, data = item["metadata"], item.get("data") or {}
    revision = (metadata.get("labels") or {}).get(REVISION_LABEL)
    if not revision or not {"operatorVersion", "specHash", "template"} <= data.keys():
        return None
    return RevisionRecord(
        revision=revision,
        name=metadata["name"],
        number=item.get("revision") or 0,
        spec_hash=data["specHash"],
        operator_version=data["operatorVersion"],
        template=json.dumps(data["template"], separators=(",", ":")),
        knobs=TunedKnobs.from_json(data.get("knobs") or {}),
        created=datetime.fromisoformat(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else None,
    )
