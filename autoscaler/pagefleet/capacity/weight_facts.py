"""What the headers of a model's files tell of its weights: elements and bytes by the role that a tensor plays."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pagefleet.capacity.errors import CannotPlan

# safetensors' words for number formats, with their bits.
DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 16),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
FLOAT_DTYPES = ("BF16", "F16", "F32", "F64")
PACKED_WEIGHTS = {"I32": 8, "U8": 2}
"""Weights in one element of the formats that hold 4-bit numbers."""
DEQUANTIZED = "dequantized"
"""Stored in a format that the loader turns into plain numbers, as GGUF's are."""

INT4_GROUPS = (128, 64, 32)
"""Inputs that share a scale in 4-bit weights: a loader takes the first that divides a matrix's inputs."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blk|blocks)\.(\d+)\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|token_embd)\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.weight$")
_EXPERT = re.compile(r"\.experts\.|_exps\.")
_SHARED = re.compile(r"shared_expert")
_KV_PROJECTION = re.compile(r"\.(?:k_proj|v_proj|attn_k|attn_v)\.")
_REPLICATED = re.compile(r"\.(?:gate|router|q_a_proj|kv_a_proj_with_mqa)\.weight")


class Role(StrEnum):
    """What a tensor is for: it decides how it is split, quantized and read."""

    EMBEDDING = "embedding"
    HEAD = "head"
    EXPERTS = "experts"
    KV_PROJECTION = "kv_projection"
    LINEAR = "linear"
    REPLICATED = "replicated"
    """Norms, biases and routers: small, whole on every accelerator, never quantized."""


QUANTIZABLE = (Role.EXPERTS, Role.KV_PROJECTION, Role.LINEAR)
"""Embedding and head stay in full precision: they decide the most and weigh little."""


@dataclass(frozen=True)
class Tensor:
    """One stored tensor; `shape` is [outputs, inputs] for a matrix."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def layer(self) -> int | None:
        """Number of the layer that it belongs to, or None."""
        match = _LAYER.search(self.name)
        return int(match[1]) if match else None

    @property
    def int4_groups(self) -> int:
        """Groups of weights with a scale of their own when a loader packs it in 4 bits; 0 when it cannot."""
        size = next((size for size in INT4_GROUPS if self.shape and self.shape[-1] % size == 0), None)
        return math.prod(self.shape) // size if size and len(self.shape) > 1 else 0

    @property
    def role(self) -> Role:
        """What it is for, by its name."""
        if _EMBEDDING.search(self.name):
            return Role.EMBEDDING
        if _HEAD.search(self.name):
            return Role.HEAD
        if _EXPERT.search(self.name) and not _SHARED.search(self.name):
            return Role.EXPERTS
        if len(self.shape) < 2 or _REPLICATED.search(self.name):
            return Role.REPLICATED
        return Role.KV_PROJECTION if _KV_PROJECTION.search(self.name) else Role.LINEAR


@dataclass(frozen=True, kw_only=True)
class WeightGroup:
    """Sum the tensors of one role and one stored format."""

    role: Role
    dtype: str
    elements: int
    bytes: int
    outputs: int
    """Rows of all its matrices: quantized formats keep numbers for each."""
    int4_elements: int
    """Weights that a loader can pack in 4 bits."""
    int4_groups: int
    """Groups of those that share a scale."""

    @property
    def is_plain(self) -> bool:
        """Whether an element is one weight, so that a loader may store it in another format."""
        return self.dtype in FLOAT_DTYPES or self.dtype == DEQUANTIZED


@dataclass(frozen=True)
class WeightFacts:
    """The weights of a model, without those that are never loaded."""

    groups: tuple[WeightGroup, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes in the files."""
        return sum(group.bytes for group in self.groups)

    def count(self, *roles: Role) -> int:
        """Return how many weights some roles have, or all of them when none is named."""
        return sum(
            group.elements * PACKED_WEIGHTS.get(group.dtype, 1)
            for group in self.groups
            if not roles or group.role in roles
        )


def tensors_of_headers(headers: Iterable[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    """Return the tensors that safetensors headers (one dictionary for each file) describe; raises CannotPlan."""
    tensors = tuple(
        _tensor(name, entry) for header in headers for name, entry in header.items() if name != "__metadata__"
    )
    if not tensors:
        raise CannotPlan("the model has no safetensors header, so its weights are unknown: give all of its files")
    return tensors


def _tensor(name: str, entry: Any) -> Tensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise CannotPlan(
            f"the safetensors header is damaged at {name}: it must have dtype, shape and data_offsets; "
            "download the file again"
        ) from error
    if dtype not in DTYPE_BITS:
        raise CannotPlan(f"weight {name} has the unknown format {dtype}; known are {', '.join(sorted(DTYPE_BITS))}")
    expected = -(-math.prod(shape) * DTYPE_BITS[dtype] // 8)
    if end - begin != expected or min((*shape, begin)) < 0:
        raise CannotPlan(
            f"the safetensors header is damaged at {name}: {dtype} {list(shape)} takes {expected} bytes, but it says "
            f"{end - begin}; download the file again"
        )
    return Tensor(name, dtype, shape, expected)


def weight_facts(tensors: Sequence[Tensor], *, layers: int, ties_head: bool) -> WeightFacts:
    """Sum the tensors that a model of so many layers loads: no draft layers, no copy of a tied head."""
    sums: dict[tuple[Role, str], list[int]] = {}
    for tensor in tensors:
        role = tensor.role
        if (role is Role.HEAD and ties_head) or (tensor.layer or 0) >= layers:
            continue
        outputs = math.prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else 0
        elements, int4_groups = math.prod(tensor.shape), tensor.int4_groups
        total = sums.setdefault((role, tensor.dtype), [0] * 5)
        for index, value in enumerate((elements, tensor.bytes, outputs, elements if int4_groups else 0, int4_groups)):
            total[index] += value
    return WeightFacts(
        tuple(
            WeightGroup(
                role=role,
                dtype=dtype,
                elements=elements,
                bytes=size,
                outputs=outputs,
                int4_elements=int4_elements,
                int4_groups=int4_groups,
            )
            for (role, dtype), (elements, size, outputs, int4_elements, int4_groups) in sums.items()
        )
    )
