"""The accelerator that each replica gets."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from pagefleet.api.base import ApiModel, PositiveInteger
from pagefleet.api.quantity import Quantity, quantity_bytes


class AcceleratorSpec(ApiModel):
    """The accelerator of one replica; without a resource the replica runs on the CPU."""

    resource: (
        Annotated[str, Field(max_length=316, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9._-]*$")]
        | None
    ) = None
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
        if self.memory_bytes is not None and self.memory_bytes < 2**20:
            raise ValueError(f"memory is {self.memory_bytes} bytes; write it with a unit, such as 80Gi")
        return self
