"""The capacity planner: model facts + accelerator + workload → a plan, or a refusal with its fix. Pure.

It imports the standard library alone: no clock, no files, no network. `read_model` takes what others have read.
"""

from pagefleet.capacity.accelerators import ACCELERATORS, PRODUCTS, Accelerator, find_accelerator
from pagefleet.capacity.engine_profile import EngineProfile, pagefleet_profile
from pagefleet.capacity.errors import CannotPlan, DoesNotFit, ObjectiveOutOfReach
from pagefleet.capacity.model_facts import ModelFacts
from pagefleet.capacity.objective import Objective
from pagefleet.capacity.plan import Alternative, CapacityPlan, Choice
from pagefleet.capacity.planner import aim, make_plan
from pagefleet.capacity.quality import FormatQuality, GateState, QualityGate, QualityResult
from pagefleet.capacity.read_model import join_facts, read_model
from pagefleet.capacity.request import Allowed, MeasuredStep, PinnedKnobs, PlanRequest
from pagefleet.capacity.workload import Lengths, Workload

__all__ = [
    "ACCELERATORS",
    "PRODUCTS",
    "Accelerator",
    "Allowed",
    "Alternative",
    "CannotPlan",
    "CapacityPlan",
    "Choice",
    "DoesNotFit",
    "EngineProfile",
    "FormatQuality",
    "GateState",
    "Lengths",
    "MeasuredStep",
    "ModelFacts",
    "Objective",
    "ObjectiveOutOfReach",
    "PinnedKnobs",
    "PlanRequest",
    "QualityGate",
    "QualityResult",
    "Workload",
    "aim",
    "find_accelerator",
    "join_facts",
    "make_plan",
    "pagefleet_profile",
    "read_model",
]
