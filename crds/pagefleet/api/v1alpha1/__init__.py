"""The types of API version v1alpha1, one module for each concept, all importable from here."""

from pagefleet.api.v1alpha1.accelerator import AcceleratorSpec
from pagefleet.api.v1alpha1.autoscaling import (
    AutoscalingMode,
    AutoscalingSpec,
    ScaleToZeroSpec,
    ScalingTargets,
    SloSpec,
)
from pagefleet.api.v1alpha1.autoscaling_status import (
    DECISIONS_KEPT,
    AutoscalingStatus,
    ScalingDecision,
    ScalingSignals,
)
from pagefleet.api.v1alpha1.engine import (
    BatchingMode,
    EngineSpec,
    KvCacheDtype,
    KvCacheSpec,
    ParallelismSpec,
    SpeculativeMethod,
    SpeculativeSpec,
    WeightQuantization,
    WeightsSpec,
)
from pagefleet.api.v1alpha1.inference_service import InferenceService, InferenceServiceSpec, PodTemplatePatch
from pagefleet.api.v1alpha1.metadata import ObjectMeta
from pagefleet.api.v1alpha1.model import ModelReference, ModelSource, SecretKey
from pagefleet.api.v1alpha1.model_uri import MODEL_URI_FORMS, ModelScheme, ModelUri, parse_model_uri
from pagefleet.api.v1alpha1.plan_status import PlanFootprint, PlanStatus, PlanStepTime, TuningEvidence, TuningStatus
from pagefleet.api.v1alpha1.rollout import RolloutSpec, RolloutStrategy
from pagefleet.api.v1alpha1.status import InferenceServiceStatus, RevisionStatus, ServicePhase
from pagefleet.api.v1alpha1.tuning import TuningAllowance, TuningMode, TuningObjective, TuningSpec

__all__ = [
    "DECISIONS_KEPT",
    "MODEL_URI_FORMS",
    "AcceleratorSpec",
    "AutoscalingMode",
    "AutoscalingSpec",
    "AutoscalingStatus",
    "BatchingMode",
    "EngineSpec",
    "InferenceService",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "KvCacheDtype",
    "KvCacheSpec",
    "ModelReference",
    "ModelScheme",
    "ModelSource",
    "ModelUri",
    "ObjectMeta",
    "ParallelismSpec",
    "PlanFootprint",
    "PlanStatus",
    "PlanStepTime",
    "PodTemplatePatch",
    "RevisionStatus",
    "RolloutSpec",
    "RolloutStrategy",
    "ScaleToZeroSpec",
    "ScalingDecision",
    "ScalingSignals",
    "ScalingTargets",
    "SecretKey",
    "ServicePhase",
    "SloSpec",
    "SpeculativeMethod",
    "SpeculativeSpec",
    "TuningAllowance",
    "TuningEvidence",
    "TuningMode",
    "TuningObjective",
    "TuningSpec",
    "TuningStatus",
    "WeightQuantization",
    "WeightsSpec",
    "parse_model_uri",
]
