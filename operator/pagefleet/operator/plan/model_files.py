"""Where a pod finds its model: the engine's MODEL, and the volumes, mounts and variables that put it there."""

from dataclasses import dataclass, field
from typing import Any

from pagefleet.api.v1alpha1 import InferenceServiceSpec, ModelScheme
from pagefleet.operator.plan.engine_arguments import RefusedField

JsonObject = dict[str, Any]

MODEL_FOLDER = "/model"
MODEL_VOLUME = "model"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What one model adds to a pod."""

    argument: str
    """The engine's MODEL."""
    volumes: list[JsonObject] = field(default_factory=list)
    mounts: list[JsonObject] = field(default_factory=list)
    env: list[JsonObject] = field(default_factory=list)


def find_unreachable(spec: InferenceServiceSpec) -> RefusedField | None:
    """Return why a model can't be reached from a pod: a path of some node is no place for a scheduler."""
    source = spec.model.source
    if source.scheme is not ModelScheme.FILE:
        return None
    folder = source.location.strip("/")
    return RefusedField(
        "spec.model.uri",
        spec.model.uri,
        "a pod may land on a node without that file",
        f"write pvc://claim/{folder} with a volume claim that holds it, or hf://organisation/model",
    )


def place_model(spec: InferenceServiceSpec) -> ModelFiles:
    """Return how a pod gets the model of a spec that `find_unreachable` has no objection to."""
    source, secret = spec.model.source, spec.model.token_secret
    match source.scheme:
        case ModelScheme.PACKAGE:
            return ModelFiles(f"package://{source.location}/{source.path}")
        case ModelScheme.PVC:
            claim = {"claimName": source.location, "readOnly": True}
            return _mounted(source.path, {"persistentVolumeClaim": claim})
        case ModelScheme.OCI:
            image = {"reference": source.location, "pullPolicy": "IfNotPresent"}
            return _mounted(source.path, {"image": image})
        case _:
            token = [] if secret is None else [_secret_variable("HF_TOKEN", secret.name, secret.key)]
            return ModelFiles(source.location, env=token)


def _mounted(path: str, volume_source: JsonObject) -> ModelFiles:
    return ModelFiles(
        f"{MODEL_FOLDER}/{path}".rstrip("/"),
        volumes=[{"name": MODEL_VOLUME, **volume_source}],
        mounts=[{"name": MODEL_VOLUME, "mountPath": MODEL_FOLDER, "readOnly": True}],
    )


def _secret_variable(variable: str, secret: str, key: str) -> JsonObject:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
