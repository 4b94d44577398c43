"""Steps for the Triton back end and its reference, over caches with the same contents.

The interpreter takes milliseconds for each program, so a history is written into the caches and not computed.
"""

from typing import Any

import torch

from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape, LayerAttention
from pagefleet.engine.kernels.reference import ReferenceAttention
from pagefleet.engine.kernels.triton.attention import TritonAttention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_shape(layer: LayerAttention | None = None, **options: Any) -> AttentionShape:
    """Make a shape of one layer."""
    defaults: dict[str, Any] = {
        "layers": 1,
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "block_size": 16,
        "cache_dtype": torch.float32,
        "device": DEVICE,
        "layer_attention": () if layer is None else (layer,),
    }
    merged = {**defaults, **options}
    return AttentionShape(**{"scale": merged["head_dim"] ** -0.5, **merged})


def make_batch(sequences: list[tuple[int, int]], block_size: int) -> tuple[AttentionBatch, int]:
    """Return a batch of (new tokens, context with them), its tables scattered over the cache, and the blocks."""
    needed = [-(-context // block_size) for _, context in sequences]
    order = torch.randperm(sum(needed) + 2, generator=torch.Generator().manual_seed(0)).tolist()
    tables = [[order.pop() for _ in range(count)] for count in needed]
    spans = [range(context - length, context) for length, context in sequences]
    slots = [
        table[position // block_size] * block_size + position % block_size
        for table, span in zip(tables, spans, strict=True)
        for position in span
    ]
    batch = AttentionBatch(
        positions=torch.tensor([position for span in spans for position in span], device=DEVICE),
        slots=torch.tensor(slots, device=DEVICE),
        query_lengths=[length for length, _ in sequences],
        context_lengths=[context for _, context in sequences],
        block_tables=tables,
    )
    return batch, sum(needed) + 2


def fill(attention: TritonAttention, reference: ReferenceAttention, blocks: int) -> None:
    """Allocate both caches and give them the same random contents."""
    generator = torch.Generator().manual_seed(1)
    for back_end in (attention, reference):
        back_end.allocate(blocks)
    caches = (attention._cache.keys, reference._cache.keys), (attention._cache.values, reference._cache.values)
    for head_major, token_major in caches:
        for one, other in zip(head_major, token_major, strict=True):
            other.copy_(torch.randn(other.shape, generator=generator))
            one.copy_(other.transpose(1, 2))


def make_query(shape: AttentionShape, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(tokens, shape.query_heads, shape.head_dim, generator=generator).to(dtype).to(shape.device)


def attend_both(
    shape: AttentionShape, sequences: list[tuple[int, int]], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the kernels and the reference make of a step's queries, in float32."""
    attention, reference = TritonAttention(shape), ReferenceAttention(shape)
    batch, blocks = make_batch(sequences, shape.block_size)
    fill(attention, reference, blocks)
    query = make_query(shape, len(batch.slots), dtype)
    results = []
    for back_end in (attention, reference):
        back_end.begin_step(batch)
        results.append(back_end.attend(0, query).float())
    return results[0], results[1]
