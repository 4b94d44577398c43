"""Steps for the Triton back end with a packed cache, over what its torch twin has stored.

The interpreter takes milliseconds for each program, so the twin stores the history and the pools are copied from it.
"""

from typing import Any

import torch

from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, LayerAttention
from pagefleet.engine.kernels.packed_format import PACKED_FORMATS
from pagefleet.engine.kernels.packed_gather import PackedGatherAttention
from pagefleet.engine.kernels.triton.packed_attention import PackedTritonAttention
from tests.engine.kernels.triton_steps import DEVICE, make_shape

Sequences = list[tuple[int, int]]
"""(New tokens, context with them)."""


def make_packed_shape(name: str, layer: LayerAttention | None = None, **options: Any) -> AttentionShape:
    return make_shape(layer, packed=PACKED_FORMATS[name], **{"block_size": 64, "head_dim": 32, **options})


def make_packed_batch(sequences: Sequences, size: int) -> tuple[AttentionBatch, int]:
    """Return a batch over scattered blocks and, scattered otherwise, a plain slot of each; and how many there are."""
    generator = torch.Generator().manual_seed(0)
    needed = [-(-context // size) for _, context in sequences]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    slot_of = torch.randperm(len(order), generator=generator).to(torch.int32)
    tables = [[order.pop() for _ in range(count)] for count in needed]
    spans = [range(context - length, context) for length, context in sequences]
    slots = [
        int(slot_of[table[position // size]]) * size + position % size
        for table, span in zip(tables, spans, strict=True)
        for position in span
    ]
    batch = AttentionBatch(
        positions=torch.tensor([position for span in spans for position in span], device=DEVICE),
        slots=torch.tensor(slots, device=DEVICE),
        query_lengths=[length for length, _ in sequences],
        context_lengths=[context for _, context in sequences],
        block_tables=tables,
        plain_slots=slot_of,
    )
    return batch, len(slot_of)


def make_rows(shape: AttentionShape, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random queries, keys (with one large channel, as Qwen's have) and values."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(tokens, heads, shape.head_dim, generator=generator).to(shape.device, shape.cache_dtype)
        for heads in (shape.query_heads, shape.kv_heads, shape.kv_heads)
    )
    key[..., 1] += 20
    return query, key, value


def with_history(shape: AttentionShape, sequences: Sequences) -> tuple[PackedTritonAttention, PackedGatherAttention]:
    """Return both back ends with what came before the new tokens in layer 0."""
    attention, twin = PackedTritonAttention(shape), PackedGatherAttention(shape)
    batch, blocks = make_packed_batch(sequences, shape.block_size)
    for back_end in (attention, twin):
        back_end.allocate(blocks, blocks)
    histories = [context - length for length, context in sequences]
    before = [(table, history) for table, history in zip(batch.block_tables, histories, strict=True) if history]
    if before:
        slot_of, size = batch.plain_slots, shape.block_size
        assert slot_of is not None
        places = [(table[at // size], at % size) for table, history in before for at in range(history)]
        slots = torch.tensor([int(slot_of[block]) * size + offset for block, offset in places], device=DEVICE)
        lengths = [history for _, history in before]
        tables = [table for table, _ in before]
        twin.begin_step(
            AttentionBatch(
                positions=slots,
                slots=slots,
                query_lengths=lengths,
                context_lengths=lengths,
                block_tables=tables,
                plain_slots=slot_of,
            )
        )
        _, key, value = make_rows(shape, len(slots), seed=1)
        twin.store(0, key, value)
    copy_caches(attention, twin)
    return attention, twin


def copy_caches(attention: PackedTritonAttention, twin: PackedGatherAttention) -> None:
    """Give the kernels' cache what the twin's holds."""
    for head_major, token_major in zip(caches_of(attention), twin_caches(twin), strict=True):
        head_major.copy_(token_major)


def caches_of(attention: PackedTritonAttention) -> list[torch.Tensor]:
    """Return plain keys and values and all packed pools of layer 0, heads before tokens."""
    return [attention._cache.keys[0], attention._cache.values[0], *attention._pools.of(0)[:-1]]


def twin_caches(twin: PackedGatherAttention) -> list[torch.Tensor]:
    """Return the twin's in the same order."""
    cache = twin._cache
    pools = [pool[0] for pool in cache._pools]
    per_token = {0, 3, 4, 5}
    packed = [pool.transpose(1, 2) if index in per_token else pool for index, pool in enumerate(pools)]
    return [cache.plain.keys[0].transpose(1, 2), cache.plain.values[0].transpose(1, 2), *packed]


def attend_both(shape: AttentionShape, sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the kernels and the twin make of a step over the same cache, in float32."""
    attention, twin = with_history(shape, sequences)
    batch, _ = make_packed_batch(sequences, shape.block_size)
    query, key, value = make_rows(shape, len(batch.slots), seed=2)
    for back_end in (twin, attention):
        back_end.begin_step(batch)
    twin.store(0, key, value)
    copy_caches(attention, twin)
    return attention.attend(0, query).float(), twin.attend(0, query).float()
