"""The InferenceService resource: one language model, served by a number of equal replicas."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from pagefleet.api import API_VERSION, KIND
from pagefleet.api.base import ApiModel, JsonObject, ReplicaCount
from pagefleet.api.cel import Rule, section_rules, text
from pagefleet.api.v1alpha1.accelerator import AcceleratorSpec
from pagefleet.api.v1alpha1.autoscaling import AutoscalingSpec
from pagefleet.api.v1alpha1.engine import EngineSpec
from pagefleet.api.v1alpha1.metadata import NAME_RULES, ObjectMeta
from pagefleet.api.v1alpha1.model import ModelSource
from pagefleet.api.v1alpha1.rollout import RolloutSpec
from pagefleet.api.v1alpha1.status import InferenceServiceStatus
from pagefleet.api.v1alpha1.tuning import TuningSpec

# The API server judges pods better than a copy of its schema here would, and the copy would fill the CRD.
_PodPart = Annotated[JsonObject, WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]


class PodTemplatePatch(ApiModel):
    """A strategic-merge patch on the pod template of every replica. The engine's container is named `engine`."""

    metadata: _PodPart | None = None
    """Labels and annotations to add to pods."""
    spec: _PodPart | None = None
    """Pod fields to set: nodeSelector, tolerations, volumes, containers with their resources and env."""


_TENSOR, _PIPELINE = "self.engine.parallelism.?tensor.orValue(1)", "self.engine.parallelism.?pipeline.orValue(1)"
_PARALLELISM_RULE = Rule(
    f"!has(self.accelerator.resource) || {_TENSOR} * {_PIPELINE} <= self.accelerator.count",
    text(
        "engine.parallelism needs %d accelerators (tensor %d x pipeline %d), but accelerator.count is %d; "
        "write accelerator.count: %d",
        f"{_TENSOR} * {_PIPELINE}",
        _TENSOR,
        _PIPELINE,
        "self.accelerator.count",
        f"{_TENSOR} * {_PIPELINE}",
    ),
)


_QUALITY_RULE = Rule(
    "!has(self.tuning.quality) || self.tuning.quality.model == self.model.uri",
    text(
        "tuning.quality is of %s, but model.uri is %s; measure that model, or remove tuning.quality",
        "self.tuning.quality.model",
        "self.model.uri",
    ),
)


class InferenceServiceSpec(ApiModel):
    """What the user asks for. Only `model` must be written."""

    model_config = ConfigDict(json_schema_extra=section_rules(_PARALLELISM_RULE, _QUALITY_RULE))

    model: ModelSource
    """The model to serve."""
    replicas: ReplicaCount = 1
    """Replicas to run; 0 stops the service. With autoscaling in mode Active, the autoscaler sets it."""
    accelerator: AcceleratorSpec = Field(default=AcceleratorSpec())
    """The accelerator of each replica. Left out: the CPU."""
    engine: EngineSpec = Field(default=EngineSpec())
    """Settings of the engine; what is left out, the planner chooses."""
    tuning: TuningSpec = Field(default=TuningSpec())
    """What the planner may try by itself."""
    autoscaling: AutoscalingSpec | None = None
    """How the number of replicas follows the load. Left out: it does not."""
    rollout: RolloutSpec = Field(default=RolloutSpec())
    """How a new revision takes over."""
    template: PodTemplatePatch = Field(default=PodTemplatePatch())
    """A strategic-merge patch on the pod template of every replica. The engine's container is named `engine`."""

    @model_validator(mode="after")
    def _parallelism_fits_count(self) -> Self:
        tensor, pipeline = self.engine.parallelism.tensor or 1, self.engine.parallelism.pipeline or 1
        if self.accelerator.resource is not None and tensor * pipeline > self.accelerator.count:
            raise ValueError(
                f"engine.parallelism needs {tensor * pipeline} accelerators (tensor {tensor} x pipeline {pipeline}), "
                f"but accelerator.count is {self.accelerator.count}; write accelerator.count: {tensor * pipeline}"
            )
        return self

    @model_validator(mode="after")
    def _quality_is_of_this_model(self) -> Self:
        quality = self.tuning.quality
        if quality is not None and quality.model != self.model.uri:
            raise ValueError(
                f"tuning.quality is of {quality.model}, but model.uri is {self.model.uri}; measure that model, or "
                "remove tuning.quality"
            )
        return self


class InferenceService(ApiModel):
    """One language model, served by a number of equal replicas."""

    model_config = ConfigDict(json_schema_extra=section_rules(*NAME_RULES))

    api_version: Literal["serving.pagefleet.io/v1alpha1"] = API_VERSION
    """serving.pagefleet.io/v1alpha1."""
    kind: Literal["InferenceService"] = KIND
    """InferenceService."""
    metadata: ObjectMeta
    """Name, namespace, labels and annotations."""
    spec: InferenceServiceSpec
    """What the user asks for."""
    status: InferenceServiceStatus = Field(default=InferenceServiceStatus())
    """What is observed. Never written by users."""

    @property
    def served_name(self) -> str:
        """Name that clients put in a request's `model` field."""
        return self.spec.model.name or self.metadata.name
