"""Which revision a spec belongs to, and which template its pods run: pinned by whoever rendered it first.

revision = hash of what the user wrote for pods. A new operator version renders other templates, but the stored one of a
known revision stays, with the knobs that were chosen for it, so that an upgrade restarts nothing. The user takes the
new one by naming this operator's version in the annotation `adopt-template`, which makes a revision of its own.
"""

import json
from dataclasses import dataclass
from typing import Any

from pagefleet.api.labels import ADOPT_TEMPLATE_ANNOTATION
from pagefleet.api.v1alpha1 import InferenceService, TuningMode
from pagefleet.operator.plan.intent import content_hash
from pagefleet.operator.plan.names import digest
from pagefleet.operator.plan.observed import RevisionRecord
from pagefleet.operator.plan.pod_template import render_pod_template
from pagefleet.operator.plan.settings import RenderSettings
from pagefleet.operator.plan.tuned_knobs import NO_KNOBS, TunedKnobs, with_knobs

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision and the template that its pods run."""

    revision: str
    template: JsonObject
    spec_hash: str
    operator_version: str
    number: int
    drift: str | None = None
    """A sentence where this operator would render another template."""
    knobs: TunedKnobs = NO_KNOBS
    """What the planner chose for its pods."""


def spec_hash(service: InferenceService) -> str:
    """Return the hash of those parts of the spec that pods are made of; not replicas, scaling and rollout.

    Defaults don't count: a field that a newer version adds must not make a new revision of an old spec.
    """
    spec = service.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    tunes_itself = service.spec.tuning.mode is TuningMode.AUTO
    of_pods = ("model", "accelerator", "engine", "template", *(("tuning",) if tunes_itself else ()))
    parts = {key: spec[key] for key in of_pods if key in spec}
    return content_hash([parts, service.served_name])


def pinned_revision(service: InferenceService, known: tuple[RevisionRecord, ...]) -> RevisionRecord | None:
    """Return the newest stored revision of the present spec."""
    mine = spec_hash(service)
    return max((one for one in known if one.spec_hash == mine), key=lambda one: one.number, default=None)


def choose_revision(
    service: InferenceService, known: tuple[RevisionRecord, ...], settings: RenderSettings, knobs: TunedKnobs = NO_KNOBS
) -> Revision:
    """Return the revision of the present spec with the planner's knobs.

    Raises UnsupportedSpec and TemplatePatchError where none can be made.
    """
    mine = spec_hash(service)
    rendered = render_pod_template(with_knobs(service, knobs), settings)
    pinned = pinned_revision(service, known)
    version = settings.operator_version
    if pinned is None:
        return Revision(digest(mine), rendered, mine, version, _next_number(known), knobs=knobs)
    if pinned.knobs != knobs:
        name = digest(f"{mine}@{content_hash(knobs.to_json())}")
        return Revision(name, rendered, mine, version, _next_number(known), knobs=knobs)
    template = json.loads(pinned.template)
    adopts = service.metadata.annotations.get(ADOPT_TEMPLATE_ANNOTATION) == version
    if template != rendered and adopts:
        name = digest(f"{mine}@{content_hash(rendered)}")
        return Revision(name, rendered, mine, version, _next_number(known), knobs=knobs)
    drift = None
    if template != rendered:
        drift = (
            f"pods run the template of operator {pinned.operator_version}, this is {version} with other settings; "
            f"to take it, annotate the service with {ADOPT_TEMPLATE_ANNOTATION}={version}"
        )
    return Revision(pinned.revision, template, mine, pinned.operator_version, pinned.number, drift, knobs)


def stored_revision(record: RevisionRecord) -> Revision:
    """Return a known revision with its pinned template."""
    template = json.loads(record.template)
    return Revision(
        record.revision, template, record.spec_hash, record.operator_version, record.number, knobs=record.knobs
    )


def _next_number(known: tuple[RevisionRecord, ...]) -> int:
    return 1 + max((one.number for one in known), default=0)
