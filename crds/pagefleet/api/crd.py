"""The CustomResourceDefinition of InferenceService, generated from the types. Pure."""

import hashlib
import json
from typing import Any, Final

import yaml

from pagefleet.api import GROUP, KIND, PLURAL, SHORT_NAME, VERSION
from pagefleet.api.cel import VALIDATIONS
from pagefleet.api.crd_schema import structural_schema, without_defaults
from pagefleet.api.labels import SCHEMA_HASH_ANNOTATION
from pagefleet.api.v1alpha1 import InferenceService

CRD_NAME: Final = f"{PLURAL}.{GROUP}"
CRD_FILE: Final = f"crds/{CRD_NAME}.yaml"
"""Where the repository keeps the generated YAML."""

_HEADER = "# Written by `pagefleet crds` from the types in pagefleet.api.v1alpha1; edit those.\n"

# Kubernetes' own words: these three fields are the same in every object.
_API_VERSION_TEXT = "Version of the schema of this object: serving.pagefleet.io/v1alpha1."
_KIND_TEXT = "Kind of this object: InferenceService."

_READY = ".status.conditions[?(@.type=='Ready')].status"
_COLUMNS = (
    ("Ready", "string", _READY, "Whether requests are answered."),
    ("Reason", "string", ".status.reason", "Why, in one word."),
    ("Replicas", "string", ".status.replicasText", "Replicas that answer, of those asked for."),
    ("KV%", "integer", ".status.autoscaling.signals.kvPercent", "KV-cache blocks held by live sequences."),
    ("Queue", "integer", ".status.autoscaling.signals.queueDepth", "Requests that wait."),
    ("Model", "string", ".spec.model.uri", "Where the model comes from."),
    ("URL", "string", ".status.url", "Base of the OpenAI API inside the cluster."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
)


def crd_manifest() -> dict[str, Any]:
    """Return the CustomResourceDefinition, with the hash of its content as an annotation."""
    spec = _spec()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME, "annotations": {SCHEMA_HASH_ANNOTATION: _hash(spec)}},
        "spec": spec,
    }


def crd_yaml() -> str:
    """Return the CustomResourceDefinition as the repository keeps it."""
    return _HEADER + yaml.dump(crd_manifest(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def schema_hash() -> str:
    """Return the hash that the installed CustomResourceDefinition carries where it has this version's fields."""
    return _hash(_spec())


def _hash(spec: dict[str, Any]) -> str:
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _spec() -> dict[str, Any]:
    return {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "plural": PLURAL,
            "singular": KIND.lower(),
            "kind": KIND,
            "listKind": f"{KIND}List",
            "shortNames": [SHORT_NAME],
            "categories": ["all"],
        },
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "additionalPrinterColumns": [
                    {"name": name, "type": kind, "jsonPath": path, "description": text}
                    for name, kind, path, text in _COLUMNS
                ],
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "schema": {"openAPIV3Schema": _root_schema()},
            }
        ],
    }


def _root_schema() -> dict[str, Any]:
    """Return the schema of the whole object; of its metadata only the API server's own is allowed there."""
    schema = structural_schema(InferenceService)
    fields = schema["properties"]
    name = fields["metadata"]["properties"]["name"]
    return {
        "type": "object",
        "description": schema["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": _API_VERSION_TEXT},
            "kind": {"type": "string", "description": _KIND_TEXT},
            # Nothing more may stand here; without the name the rules on it could not say where the mistake is.
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "description": name["description"]}},
            },
            "spec": fields["spec"],
            "status": without_defaults(fields["status"]),
        },
        VALIDATIONS: schema[VALIDATIONS],
    }


class _Dumper(yaml.SafeDumper):
    """Writes equal parts out instead of as anchors, which people can't read and `kubectl` need not."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True
