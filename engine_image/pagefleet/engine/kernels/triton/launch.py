"""Call the kernels for one shape; Triton is imported here and in the kernels alone."""

import torch
import triton
import triton.language as tl

from pagefleet.capacity.kv_formats import sink_blocks
from pagefleet.engine.kernels.interface import AttentionShape
from pagefleet.engine.kernels.packed_format import PackedFormat
from pagefleet.engine.kernels.triton.attention_kernel import attention_kernel, merge_kernel
from pagefleet.engine.kernels.triton.pack_kernel import pack_kernel
from pagefleet.engine.kernels.triton.packed_attention_kernel import packed_attention_kernel
from pagefleet.engine.kernels.triton.store_kernel import store_kernel
from pagefleet.engine.kernels.triton.tiles import MOST_SPLITS, StepItems, Tile, next_power_of_2, padded_head_dim
from pagefleet.engine.layers.rotary import RotaryTable

IS_INTERPRETED = triton.knobs.runtime.interpret

DOT_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}

PACK_WARPS = 8


def packed_constants(packed: PackedFormat | None, block_size: int) -> dict[str, int]:
    """Return what the attention kernel of a packed cache knows besides."""
    if packed is None:
        return {}
    sink_tokens = sink_blocks(block_size) * block_size
    return {"sink_tokens": sink_tokens, "key_bits": packed.key_bits, "value_bits": packed.value_bits}


class Launcher:
    """Hold what all launches of a shape share."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._head_padded = padded_head_dim(shape.head_dim)
        self._attention_kernel = attention_kernel if shape.packed is None else packed_attention_kernel
        self._packed_constants = packed_constants(shape.packed, shape.block_size)

    def store(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        query: torch.Tensor | None = None,
        rotary: RotaryTable | None = None,
    ) -> None:
        """Write [rows, kv_heads, head_dim] keys and values; with a rotation, rotate them and the queries in place."""
        shape = self._shape
        store_kernel[(len(key), shape.kv_heads)](
            key if query is None else query,
            key,
            value,
            keys,
            values,
            slots,
            key if rotary is None else rotary.cosine,
            key if rotary is None else rotary.sine,
            0 if query is None else query.stride(0),
            key.stride(0),
            kv_heads=shape.kv_heads,
            group=shape.group,
            group_padded=next_power_of_2(shape.group),
            half=shape.head_dim // 2,
            half_padded=next_power_of_2(shape.head_dim // 2),
            block_size=shape.block_size,
            rotates=rotary is not None,
            num_warps=1,
        )

    def pack(
        self, plain: tuple[torch.Tensor, ...], packed: tuple[torch.Tensor, ...], step: torch.Tensor, items: StepItems
    ) -> None:
        """Pack the blocks that the step fills, from the plain keys and values into the tensors of `PackedPools`."""
        shape = self._shape
        constants = self._packed_constants
        pack_kernel[(items.fills, shape.kv_heads)](
            *plain,
            *packed,
            step,
            items.first_fill,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            run_padded=next_power_of_2(shape.head_dim // 8),
            block_size=shape.block_size,
            key_bits=constants["key_bits"],
            value_bits=constants["value_bits"],
            num_warps=PACK_WARPS,
            enable_fp_fusion=False,
        )

    def attend(
        self,
        layer: int,
        output: torch.Tensor,
        query: torch.Tensor,
        caches: tuple[torch.Tensor, ...],
        step: torch.Tensor,
        *,
        first_item: int,
        items: int,
        tile: Tile,
        splits: int,
    ) -> None:
        """Attend for `items` items from `first_item` on; those that are split have one row each and begin at 0.

        `caches` is what the kernel takes between `query` and `step`.
        """
        shape, options = self._shape, self._shape.attention_of(layer)
        partial = maxima = sums = output
        if splits > 1:
            size = (len(query), shape.query_heads, splits)
            maxima, sums = torch.empty((2, *size), dtype=torch.float32, device=query.device)
            partial = torch.empty((*size, self._head_padded), dtype=torch.float32, device=query.device)
        self._attention_kernel[(items, shape.kv_heads, splits)](
            output,
            partial,
            maxima,
            sums,
            query,
            *caches,
            step,
            first_item,
            shape.scale_of(layer),
            query.stride(0),
            kv_heads=shape.kv_heads,
            group=shape.group,
            head_dim=shape.head_dim,
            head_padded=self._head_padded,
            block_size=shape.block_size,
            rows=tile.rows,
            tile=tile.keys,
            window=options.window or 0,
            soft_cap=options.soft_cap or 0.0,
            # The interpreter multiplies the bit patterns of bfloat16.
            dot_dtype=tl.float32 if IS_INTERPRETED else DOT_DTYPES[query.dtype],
            is_split=splits > 1,
            **self._packed_constants,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        if splits > 1:
            merge_kernel[(items, shape.query_heads)](
                output,
                partial,
                maxima,
                sums,
                step,
                splits,
                heads=shape.query_heads,
                head_dim=shape.head_dim,
                head_padded=self._head_padded,
                splits_padded=MOST_SPLITS,
                num_warps=4,
            )
