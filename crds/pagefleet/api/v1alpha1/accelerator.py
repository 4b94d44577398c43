"""The accelerator that each replica gets."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from pagefleet.api.base import ApiModel, PositiveInteger
from pagefleet.api.cel import Rule, Rules, pattern, section_rules, text
from pagefleet.api.quantity import Quantity, quantity_bytes

LEAST_MEMORY_BYTES = 2**20
"""Less is a number whose unit was forgotten."""

_RESOURCE_PATTERN = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9._-]*$"
_RESOURCE_RULE = Rule(
    f"self.matches({pattern(_RESOURCE_PATTERN)})",
    text("%s has a form that is not allowed here; write a value such as nvidia.com/gpu", "self"),
)
_RULES = (
    Rule(
        "self.count == 1 || has(self.resource)",
        text(
            "count is %d, but no resource is named; write resource: nvidia.com/gpu, or count: 1",
            "self.count",
        ),
    ),
    Rule(  # what is no amount at all, or none above 0, is told by the field's own rule
        f"!has(self.memory) || (type(self.memory) == int ? self.memory <= 0 || self.memory >= {LEAST_MEMORY_BYTES} : "
        "!isQuantity(self.memory) || !quantity(self.memory).isGreaterThan(quantity('0')) || "
        "!quantity(self.memory).isLessThan(quantity('1Mi')))",
        text("memory is %s, less than 1Mi; write it with a unit, such as 80Gi", "self.memory"),
    ),
)


class AcceleratorSpec(ApiModel):
    """The accelerator of one replica; without a resource the replica runs on the CPU."""

    model_config = ConfigDict(json_schema_extra=section_rules(*_RULES))

    resource: Annotated[str, Field(max_length=316, pattern=_RESOURCE_PATTERN), Rules((_RESOURCE_RULE,))] | None = None
    """Extended resource that a pod requests, such as nvidia.com/gpu. Left out: the replica runs on the CPU."""
    count: PositiveInteger = 1
    """Accelerators of one replica."""
    memory: Quantity | None = None
    """Memory of one accelerator, such as 80Gi. Left out: from the node's labels, or on a CPU the pod's limit."""

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one accelerator in bytes, or None where the user left it out."""
        return None if self.memory is None else quantity_bytes(self.memory)

    @model_validator(mode="after")
    def _values_make_sense(self) -> Self:
        if self.count > 1 and self.resource is None:
            raise ValueError(
                f"count is {self.count}, but no resource is named; write resource: nvidia.com/gpu, or count: 1"
            )
        if self.memory_bytes is not None and self.memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"memory is {self.memory}, less than 1Mi; write it with a unit, such as 80Gi")
        return self
