"""One object as the operator means it: its kind, its body, and the hash that says whether it was applied already."""

import json
from dataclasses import dataclass
from typing import Any

from pagefleet.api.labels import INTENT_HASH_ANNOTATION, service_labels
from pagefleet.api.resources import INFERENCE_SERVICES, Resource
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.names import digest

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Intent:
    """An object to server-side-apply: every field that the operator owns, and no other."""

    resource: Resource
    body: JsonObject
    hash: str
    """Hash of the body without the annotation that carries it."""

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        return str(self.body["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.body["metadata"]["name"])

    @property
    def id(self) -> tuple[str, str]:
        """Kind and name, unique in a namespace."""
        return (self.resource.kind, self.name)


def content_hash(value: object) -> str:
    """Return a hash of plain JSON values that does not depend on the order of keys."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")), 16)


def make_intent(
    resource: Resource,
    service: InferenceService,
    name: str,
    content: JsonObject,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Intent:
    """Return the intent of an object that belongs to a service: labels, owner and hash added to its `content`."""
    metadata: JsonObject = {
        "name": name,
        "namespace": service.metadata.namespace,
        "labels": labels or service_labels(service.metadata.name),
        "ownerReferences": [owner_reference(service)],
    }
    body: JsonObject = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
    mark = content_hash([body, annotations])
    metadata["annotations"] = {**(annotations or {}), INTENT_HASH_ANNOTATION: mark}
    return Intent(resource, body, mark)


def owner_reference(service: InferenceService) -> JsonObject:
    """Return the reference by which the garbage collector removes an object with its service."""
    return {
        "apiVersion": INFERENCE_SERVICES.api_version,
        "kind": INFERENCE_SERVICES.kind,
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
