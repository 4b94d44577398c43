"""The kernels' variants for typical models, as ahead-of-time compilation needs them: types and constants by name."""

from dataclasses import dataclass
from typing import Any

import torch

from pagefleet.engine.kernels.packed_format import PACKED_FORMATS, PackedFormat
from pagefleet.engine.kernels.triton.attention import FP8, OLDEST_FP8_CAPABILITY
from pagefleet.engine.kernels.triton.attention_kernel import attention_kernel, merge_kernel
from pagefleet.engine.kernels.triton.int4_kernel import int4_kernel
from pagefleet.engine.kernels.triton.int4_linear import linear_constants
from pagefleet.engine.kernels.triton.launch import DOT_DTYPES, PACK_WARPS, packed_constants
from pagefleet.engine.kernels.triton.pack_kernel import pack_kernel
from pagefleet.engine.kernels.triton.packed_attention_kernel import packed_attention_kernel
from pagefleet.engine.kernels.triton.store_kernel import store_kernel
from pagefleet.engine.kernels.triton.tiles import (
    MOST_SPLITS,
    attention_tile,
    linear_tile,
    next_power_of_2,
    packed_tile,
    padded_head_dim,
)

PACKED_POINTERS = {
    "key_codes": "*u8",
    "key_scales": "*u8",
    "key_least": "*bf16",
    "value_codes": "*u8",
    "value_scales": "*u8",
    "value_middles": "*i8",
    "scale_table": "*fp32",
}

POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", FP8: "*fp8e4nv"}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What of a model the kernels depend on."""

    head_dim: int
    dtype: torch.dtype = torch.bfloat16
    kv_heads: int = 8
    group: int = 4
    block_size: int = 16
    window: int = 0
    soft_cap: float = 0.0
    packed: PackedFormat | None = None
    cache_dtype: torch.dtype | None = None
    """None is `dtype`."""

    def __str__(self) -> str:
        """Name it for people."""
        options = [
            f"{str(self.dtype).removeprefix('torch.')}, {self.group} to 1",
            *([f"block {self.block_size}"] if self.block_size != 16 else []),
            *([f"window {self.window}"] if self.window else []),
            *([f"cap {self.soft_cap:g}"] if self.soft_cap else []),
            *([f"KV {self.packed.name}"] if self.packed else []),
            *([f"KV {str(self.cache_dtype).removeprefix('torch.')}"] if self.cache_dtype else []),
        ]
        return ", ".join([f"head {self.head_dim}", *options])

    @property
    def cache_pointer(self) -> str:
        """Return the type of plain keys and values."""
        return POINTERS[self.cache_dtype or self.dtype]

    def runs_on(self, capability: int) -> bool:
        """Tell whether a GPU has the number formats."""
        return self.cache_dtype != FP8 or capability >= 10 * OLDEST_FP8_CAPABILITY[0] + OLDEST_FP8_CAPABILITY[1]


TYPICAL = (
    *(Configuration(head_dim=size) for size in (64, 80, 96, 128, 256)),
    *(Configuration(head_dim=size, dtype=torch.float32) for size in (64, 128, 256)),
    Configuration(head_dim=128, dtype=torch.float16),
    Configuration(head_dim=64, group=7, kv_heads=2),
    Configuration(head_dim=128, group=1, kv_heads=32),
    Configuration(head_dim=64, group=71, kv_heads=1),
    Configuration(head_dim=128, window=4096),
    Configuration(head_dim=256, group=2, window=4096, soft_cap=50.0),
    Configuration(head_dim=128, block_size=1),
    Configuration(head_dim=128, block_size=128),
    Configuration(head_dim=128, cache_dtype=FP8),
    *(
        Configuration(head_dim=size, block_size=block_size, packed=PACKED_FORMATS[name])
        for name, block_size in (("int8", 16), ("int4", 32), ("k4v3", 64))
        for size in (64, 96, 128)
    ),
    Configuration(head_dim=128, dtype=torch.float32, block_size=32, packed=PACKED_FORMATS["int4"]),
    Configuration(head_dim=256, group=2, window=4096, soft_cap=50.0, block_size=32, packed=PACKED_FORMATS["int4"]),
    Configuration(head_dim=128, block_size=128, packed=PACKED_FORMATS["k4v3"]),
)


@dataclass(frozen=True, kw_only=True)
class LinearConfiguration:
    """What of a product with 4-bit weights its kernel depends on."""

    dtype: torch.dtype = torch.bfloat16
    inputs: int = 4096
    outputs: int = 4096
    group: int = 128
    """Inputs with one scale."""

    def __str__(self) -> str:
        """Name it for people."""
        return f"4-bit weights, {str(self.dtype).removeprefix('torch.')}, groups of {self.group}"

    def runs_on(self, capability: int) -> bool:  # noqa: ARG002 - all have the number formats
        """Tell whether a GPU has the number formats."""
        return True


LINEAR = (
    LinearConfiguration(),
    LinearConfiguration(dtype=torch.float16),
    LinearConfiguration(group=32),
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel with its types and constants."""

    name: str
    kernel: Any
    pointers: dict[str, str]
    """Type by argument; all addresses are multiples of 16 bytes, as a GPU's allocator gives them."""
    numbers: dict[str, str]
    strides: tuple[str, ...]
    """Numbers that are multiples of 16."""
    constants: dict[str, Any]
    warps: int
    stages: int
    fuses_multiply_adds: bool = True


def variants(it: Configuration | LinearConfiguration) -> list[Variant]:
    """Return every kernel that a model of this configuration runs."""
    if isinstance(it, LinearConfiguration):
        return [_linear(it, tokens=tokens) for tokens in (16, 256)]
    attention = [
        _attention(it, is_decode=is_decode, is_split=is_split)
        for is_decode, is_split in ((False, False), (True, False), (True, True))
    ]
    packs = [_pack(it, it.packed)] if it.packed else []
    return [_store(it), *attention, _merge(it), *packs]


def _store(it: Configuration) -> Variant:
    rows = POINTERS[it.dtype]
    return Variant(
        name="store",
        kernel=store_kernel,
        pointers={
            **dict.fromkeys(("query", "key", "value"), rows),
            **dict.fromkeys(("keys", "values"), it.cache_pointer),
            "slots": "*i64",
            "cosine": rows,
            "sine": rows,
        },
        numbers={"query_stride": "i32", "kv_stride": "i32"},
        strides=("query_stride", "kv_stride"),
        constants={
            "kv_heads": it.kv_heads,
            "group": it.group,
            "group_padded": next_power_of_2(it.group),
            "half": it.head_dim // 2,
            "half_padded": next_power_of_2(it.head_dim // 2),
            "block_size": it.block_size,
            "rotates": True,
        },
        warps=1,
        stages=1,
    )


def _attention(it: Configuration, *, is_decode: bool, is_split: bool) -> Variant:
    rows = POINTERS[it.dtype]
    tile = attention_tile(head_dim=it.head_dim, itemsize=it.dtype.itemsize, group=it.group, is_decode=is_decode)
    output, kernel, packed_pointers = rows, attention_kernel, {}
    if it.packed:
        tile = packed_tile(
            tile, block_size=it.block_size, group=it.group, head_dim=it.head_dim, itemsize=it.dtype.itemsize
        )
        output, kernel, packed_pointers = "*fp32", packed_attention_kernel, {"slots": "*i64", **PACKED_POINTERS}
    return Variant(
        name="split decode" if is_split else "decode" if is_decode else "prefill",
        kernel=kernel,
        pointers={
            "output": output,
            **dict.fromkeys(("partial_output", "partial_maxima", "partial_sums"), "*fp32" if is_split else output),
            "query": rows,
            **dict.fromkeys(("keys", "values"), it.cache_pointer),
            **packed_pointers,
            "step": "*i32",
        },
        numbers={"first_item": "i32", "scale": "fp32", "query_stride": "i32"},
        strides=("query_stride",),
        constants={
            "kv_heads": it.kv_heads,
            "group": it.group,
            "head_dim": it.head_dim,
            "head_padded": padded_head_dim(it.head_dim),
            "block_size": it.block_size,
            "rows": tile.rows,
            "tile": tile.keys,
            "window": it.window,
            "soft_cap": it.soft_cap,
            "dot_dtype": DOT_DTYPES[it.dtype],
            "is_split": is_split,
            **packed_constants(it.packed, it.block_size),
        },
        warps=tile.warps,
        stages=tile.stages,
    )


def _merge(it: Configuration) -> Variant:
    return Variant(
        name="merge",
        kernel=merge_kernel,
        pointers={
            "output": "*fp32" if it.packed else POINTERS[it.dtype],
            **dict.fromkeys(("partial_output", "partial_maxima", "partial_sums"), "*fp32"),
            "step": "*i32",
        },
        numbers={"splits": "i32"},
        strides=(),
        constants={
            "heads": it.kv_heads * it.group,
            "head_dim": it.head_dim,
            "head_padded": padded_head_dim(it.head_dim),
            "splits_padded": MOST_SPLITS,
        },
        warps=4,
        stages=1,
    )


def _linear(it: LinearConfiguration, *, tokens: int) -> Variant:
    tile = linear_tile(tokens=tokens)
    rows = POINTERS[it.dtype]
    return Variant(
        name=f"product of {tokens} rows",
        kernel=int4_kernel,
        pointers={"output": rows, "rows": rows, "pairs": "*u8", "scales": "*fp32", "zeros": "*u8"},
        numbers={"tokens": "i32", "row_stride": "i32"},
        strides=("row_stride",),
        constants={
            "inputs": it.inputs,
            "outputs": it.outputs,
            **linear_constants(tile, it.group),
            "dot_dtype": DOT_DTYPES[it.dtype],
        },
        warps=tile.warps,
        stages=tile.stages,
    )


def _pack(it: Configuration, packed: PackedFormat) -> Variant:
    return Variant(
        name="pack",
        kernel=pack_kernel,
        pointers={**dict.fromkeys(("keys", "values"), POINTERS[it.dtype]), **PACKED_POINTERS, "step": "*i32"},
        numbers={"first_fill": "i32"},
        strides=(),
        constants={
            "kv_heads": it.kv_heads,
            "head_dim": it.head_dim,
            "run_padded": next_power_of_2(it.head_dim // 8),
            "block_size": it.block_size,
            "key_bits": packed.key_bits,
            "value_bits": packed.value_bits,
        },
        warps=PACK_WARPS,
        stages=1,
        fuses_multiply_adds=False,
    )
