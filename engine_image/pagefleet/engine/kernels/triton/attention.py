"""Paged attention in Triton: rotate and store in one launch, attend in one for decodes and one for longer chunks.

A block is `[kv_heads, block_size, head_dim]`, keys and values apart: one head's keys of a block are one piece for a
tile to read, and a block is one piece to copy.
"""

from collections.abc import Sequence

import torch

from pagefleet.engine.kernels.cache import BlockCache
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, PagedAttention
from pagefleet.engine.kernels.triton.device import device_refusal
from pagefleet.engine.kernels.triton.step_buffer import StepBuffer
from pagefleet.engine.kernels.triton.tiles import (
    FILL_NUMBERS,
    ITEM_NUMBERS,
    StepItems,
    attention_tile,
    choose_splits,
    cut_step,
)
from pagefleet.engine.layers.rotary import RotaryTable

MOST_HEAD_DIM = 256

MOST_GROUP = 128

FP8 = torch.float8_e4m3fn
"""A cache of 8-bit floats without scales: numbers beyond 448 become 448."""

OLDEST_FP8_CAPABILITY = (8, 9)
"""The first that converts them."""


class TritonAttention(PagedAttention):
    """Attend with Triton kernels. A decode's sums may be split otherwise in another batch, so its last bits may too."""

    name = "triton-paged"
    _cache: BlockCache
    _items: StepItems
    _slots: torch.Tensor
    _splits: int

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        # Not at the module's head: images for the CPU have no Triton.
        from pagefleet.engine.kernels.triton.launch import Launcher

        self._launcher = Launcher(shape)
        self._processors = _processors(shape.device)
        self._decode_tile, self._prefill_tile = (
            attention_tile(
                head_dim=shape.head_dim,
                # What is loaded in 8 bits is multiplied in 16.
                itemsize=max(2, shape.cache_dtype.itemsize),
                group=shape.group,
                is_decode=is_decode,
            )
            for is_decode in (True, False)
        )
        self._buffer = StepBuffer(shape.device)

    @classmethod
    def unsupported(cls, shape: AttentionShape) -> str | None:
        """Return why the kernels cannot serve the shape on this device, or None."""
        if reason := device_refusal(shape.device, kernel="attention"):
            return reason
        if shape.cache_dtype == FP8:
            if reason := _fp8_refusal(shape):
                return reason
        elif shape.cache_dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"the Triton attention kernel has no cache in {shape.cache_dtype}; use bfloat16 or float32"
        if shape.head_dim % 2 or shape.head_dim > MOST_HEAD_DIM:
            return (
                f"the Triton attention kernel needs an even head size up to {MOST_HEAD_DIM}, such as 128, "
                f"not {shape.head_dim}"
            )
        if shape.group > MOST_GROUP:
            return f"the Triton attention kernel shares a key among {MOST_GROUP} query heads at most, not {shape.group}"
        return None

    def allocate(self, blocks_total: int, plain_slots: int = 0) -> None:  # noqa: ARG002 - nothing here is packed
        """Allocate the cache."""
        shape = self.shape
        self._cache = BlockCache(shape, blocks_total, (shape.kv_heads, shape.block_size, shape.head_dim))

    def zero(self, blocks: list[int], plain_slots: Sequence[int] = ()) -> None:  # noqa: ARG002 - nothing here is packed
        """Clear the blocks."""
        self._cache.zero(blocks)

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy the blocks."""
        self._cache.copy_blocks(sources, targets)

    def begin_step(self, batch: AttentionBatch) -> None:
        """Cut the step into items, and bring them to the device with the block tables."""
        self._begin(batch, rows=len(batch.slots), longest_context=max(batch.context_lengths))

    def begin_decodes(self, batch: AttentionBatch, *, rows: int, longest_context: int) -> None:
        """Prepare decodes padded to `rows`, with the launches that a context of `longest_context` would have.

        Calls with the same two numbers prepare the same launches, so a captured one may be replayed after another.
        """
        self._begin(batch, rows=rows, longest_context=longest_context, least_decodes=rows)

    def reserve(self, *, sequences: int, rows: int, longest_context: int) -> None:
        """Make room for steps of so many sequences and rows, so that the buffers stay where they are."""
        blocks = -(-longest_context // self.shape.block_size)
        self._buffer.reserve(numbers=rows * (ITEM_NUMBERS + FILL_NUMBERS) + sequences * blocks, rows=rows)

    @property
    def buffer_addresses(self) -> tuple[int, ...]:
        """Return where the step's buffers lie; a captured step is void when they have moved."""
        return self._buffer.addresses

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write the rows, which are rotated already."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        self._launcher.store(keys, values, self._slots, key.contiguous(), value.contiguous())

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend."""
        query = query.contiguous()
        return self._attend(layer, query).view(query.shape)

    def forward(self, layer: int, qkv: torch.Tensor, rotary: RotaryTable) -> torch.Tensor:
        """Rotate the queries in place and the keys on their way into the cache, and attend."""
        self._rotate_and_store(layer, qkv, rotary)
        return self._attend(layer, qkv)

    def _rotate_and_store(self, layer: int, qkv: torch.Tensor, rotary: RotaryTable) -> None:
        shape = self.shape
        heads = qkv.view(qkv.shape[0], shape.query_heads + 2 * shape.kv_heads, shape.head_dim)
        keys_end = shape.query_heads + shape.kv_heads
        self._launcher.store(
            self._cache.keys[layer],
            self._cache.values[layer],
            self._slots,
            heads[:, shape.query_heads : keys_end],
            heads[:, keys_end:],
            query=qkv,
            rotary=rotary,
        )

    def _begin(self, batch: AttentionBatch, *, rows: int, longest_context: int, least_decodes: int = 0) -> None:
        self._items = self._cut(batch, least_decodes)
        self._buffer.fill(self._items.numbers, batch.slots, rows)
        self._slots = self._buffer.slots[:rows]
        self._splits = 1
        if self._items.decodes:
            self._splits = choose_splits(
                programs=self._items.decodes * self.shape.kv_heads,
                longest_context=longest_context,
                processors=self._processors,
            )

    def _cut(self, batch: AttentionBatch, least_decodes: int) -> StepItems:
        return cut_step(
            batch.query_lengths,
            batch.context_lengths,
            batch.block_tables,
            tile_tokens=self._prefill_tile.rows // self.shape.group,
            least_decodes=least_decodes,
        )

    def _attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [tokens, query_heads * head_dim]; `query` begins with as many numbers in each row."""
        output = torch.empty(
            len(query), self.shape.query_heads * self.shape.head_dim, dtype=query.dtype, device=query.device
        )
        self._attend_into(output, layer, query, (self._cache.keys[layer], self._cache.values[layer]))
        return output

    def _attend_into(
        self, output: torch.Tensor, layer: int, query: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> None:
        items = self._items
        launches = (
            (0, items.decodes, self._decode_tile, self._splits),
            (items.decodes, items.prefill_tiles, self._prefill_tile, 1),
        )
        for first_item, count, tile, splits in launches:
            if count:
                self._launcher.attend(
                    layer,
                    output,
                    query,
                    caches,
                    self._buffer.numbers,
                    first_item=first_item,
                    items=count,
                    tile=tile,
                    splits=splits,
                )


def _fp8_refusal(shape: AttentionShape) -> str | None:
    if shape.packed is not None:
        return f"what a packed cache keeps plain cannot be {FP8}; use bfloat16"
    if shape.device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(shape.device)
    if capability < OLDEST_FP8_CAPABILITY:
        return (
            f"a KV cache in fp8 needs compute capability {'.'.join(map(str, OLDEST_FP8_CAPABILITY))} or newer, "
            f"not {'.'.join(map(str, capability))}; use bfloat16 or int8"
        )
    return None


def _processors(device: torch.device) -> int:
    """Return the streaming multiprocessors of a GPU; 1 elsewhere, where nothing is gained by splitting."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
