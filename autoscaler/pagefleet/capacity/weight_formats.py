"""How many bytes the weights of one accelerator take, by the format that they are kept in."""

from dataclasses import dataclass

from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.model_facts import ModelFacts
from pagefleet.capacity.weight_facts import QUANTIZABLE, Role, WeightGroup

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
"""Number formats that engines compute in."""


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """Describe a format of the matrices in layers; all else stays in the compute format."""

    bits: float
    """Bits of one weight; 0 is the checkpoint's own precision."""
    bytes_per_output: int = 0
    """What each row of a matrix adds."""
    bytes_per_group: int = 0
    """What each group of a 4-bit format adds; weights that form no groups keep the compute format."""
    made_before: bool = False
    """The checkpoint must have been made so; a loader cannot."""
    keeps_answers: bool = False


_INT4_BYTES_PER_GROUP = 5  # a float32 scale and a zero point, as this engine keeps them

WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "none": WeightFormat(bits=0, keeps_answers=True),
    # A float32 scale for each output, and a 16-bit sum for each 128 weights, as inputs are rounded in such groups.
    "int8": WeightFormat(bits=8 + 16 / 128, bytes_per_output=4),
    "int4": WeightFormat(bits=4, bytes_per_group=_INT4_BYTES_PER_GROUP),
    "gptq": WeightFormat(bits=4, bytes_per_group=_INT4_BYTES_PER_GROUP, made_before=True),
    "awq": WeightFormat(bits=4, bytes_per_group=_INT4_BYTES_PER_GROUP, made_before=True),
    "sparse24": WeightFormat(bits=16 / 2 + 1, made_before=True),  # half of the weights, 2 bits for the place of each
}
"""By the words of `spec.engine.weights.quantization`, from most to least memory and accuracy."""


def weight_format(name: str) -> WeightFormat:
    """Return a format by its name; raises CannotPlan."""
    if name not in WEIGHT_FORMATS:
        raise CannotPlan(f"weights {name} is unknown: write one of {', '.join(WEIGHT_FORMATS)}")
    return WEIGHT_FORMATS[name]


def weights_bytes(
    model: ModelFacts, *, quantization: str, compute_dtype: str, tensor_parallel_size: int = 1, copies_tied_head: bool
) -> int:
    """Return the bytes of weights on one accelerator.

    A plain tensor takes the compute format whatever it is stored in; one that is quantized in the checkpoint stays as
    stored. `copies_tied_head`: the output matrix is packed for its kernel, beside the table that embeds.
    """
    chosen = weight_format(quantization)
    itemsize = DTYPE_BYTES[compute_dtype]
    total = 0.0
    for group in model.weights.groups:
        size = _group_bytes(group, chosen, itemsize)
        if group.role is Role.EMBEDDING and model.architecture.ties_head and copies_tied_head:
            size *= 2
        total += size / _shards(group.role, tensor_parallel_size, model.architecture.kv_heads)
    return round(total)


def _group_bytes(group: WeightGroup, chosen: WeightFormat, itemsize: int) -> float:
    if not group.is_plain:
        return group.bytes
    if chosen.bytes_per_group and group.role in QUANTIZABLE:
        packed = group.int4_elements * chosen.bits / 8 + group.int4_groups * chosen.bytes_per_group
        return packed + (group.elements - group.int4_elements) * itemsize
    if chosen.bits and group.role in QUANTIZABLE:
        return group.elements * chosen.bits / 8 + group.outputs * chosen.bytes_per_output
    return group.elements * itemsize


def _shards(role: Role, tensor_parallel_size: int, kv_heads: int) -> int:
    if role is Role.REPLICATED:
        return 1
    # With more accelerators than key-value heads, several hold the same head.
    return min(tensor_parallel_size, kv_heads) if role is Role.KV_PROJECTION else tensor_parallel_size
