"""Compare the C kernels' KV cache formats in decodes: `python -m pagefleet.engine.bench.packed_decode --context 512`.

Prints milliseconds of own CPU time of one layer's attention, storing included, best of all turns, and their ratio to
the bfloat16 cache. Layers are as many as no processor cache holds, their blocks scattered, the formats in turns.
"""

import argparse
import time
from collections.abc import Callable

import torch

from pagefleet.capacity.kv_formats import KV_FORMATS
from pagefleet.engine.bench.machine_rates import cpu_name
from pagefleet.engine.bench.tables import text_table
from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.cpu.packed_attention import PackedCpuAttention
from pagefleet.engine.kernels.interface import AttentionBatch, AttentionShape
from pagefleet.engine.kernels.packed_format import PACKED_FORMATS

LAYERS = 4
TURNS = 15
BASELINE = ("bfloat16", "bfloat16")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", default="12/4x64", help="query heads/KV heads x head size (default %(default)s)")
    parser.add_argument("--context", type=int, default=512, help="tokens of each sequence (default %(default)s)")
    parser.add_argument("--sequences", type=int, default=64, help="decodes of a step (default %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=1, help="1 decodes, more is a chunk (default %(default)s)")
    parser.add_argument("--block-size", type=int, default=64, help="tokens in a block (default %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    formats = [name for name in PACKED_FORMATS if KV_FORMATS[name].least_block_size <= options.block_size]
    cells = [(compute, cache) for compute in ("bfloat16", "float32") for cache in (compute, *formats)]
    steps = [_decode_step(options, compute, cache) for compute, cache in cells]
    best_s = [float("inf")] * len(cells)
    for _ in range(TURNS):
        for index, step in enumerate(steps):
            started_s = time.thread_time()
            step()
            best_s[index] = min(best_s[index], (time.thread_time() - started_s) / LAYERS)
    baseline_s = best_s[cells.index(BASELINE)]
    print(f"{cpu_name()}: {options.sequences} x {options.new_tokens} at {options.context}, {options.heads}")  # noqa: T201
    rows = [(*cell, f"{1e3 * s:.3f}", f"{s / baseline_s:.2f}") for cell, s in zip(cells, best_s, strict=True)]
    print(text_table(("compute", "cache", "ms a layer", "of bfloat16"), rows))  # noqa: T201


def _decode_step(options: argparse.Namespace, compute: str, cache: str) -> Callable[[], None]:
    """Return a function that computes the last step of full sequences in all layers."""
    query_heads, kv_heads, head_dim = (int(part) for part in options.heads.replace("x", "/").split("/"))
    dtype: torch.dtype = getattr(torch, compute)
    shape = AttentionShape(
        layers=LAYERS,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        block_size=options.block_size,
        cache_dtype=dtype,
        device=torch.device("cpu"),
        packed=PACKED_FORMATS.get(cache),
    )
    attention = (PackedCpuAttention if shape.packed else CpuAttention)(shape)
    blocks_each = -(-options.context // shape.block_size)
    blocks = torch.randperm(options.sequences * blocks_each, generator=torch.Generator().manual_seed(0))
    tables = blocks.view(options.sequences, blocks_each)
    attention.allocate(len(blocks), len(blocks))

    def batch_of(first: int, tables: torch.Tensor) -> AttentionBatch:
        positions = torch.arange(first, options.context)
        slots = tables[:, positions // shape.block_size] * shape.block_size + positions % shape.block_size
        return AttentionBatch(
            positions=positions.repeat(len(tables)),
            slots=slots.flatten(),
            query_lengths=[len(positions)] * len(tables),
            context_lengths=[options.context] * len(tables),
            block_tables=tables.tolist(),
            plain_slots=torch.arange(len(blocks), dtype=torch.int32),
        )

    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(options.context, query_heads + 2 * kv_heads, head_dim, generator=generator).to(dtype)
    for table in tables:
        attention.begin_step(batch_of(0, table[None]))
        for layer in range(LAYERS):
            attention.store(layer, rows[:, :kv_heads], rows[:, kv_heads : 2 * kv_heads])
    last = rows[-options.new_tokens :].repeat(options.sequences, 1, 1)
    query, key, value = (
        part.contiguous() for part in (last[:, :query_heads], last[:, query_heads:-kv_heads], last[:, -kv_heads:])
    )
    attention.begin_step(batch_of(options.context - options.new_tokens, tables))

    def step() -> None:
        for layer in range(LAYERS):
            attention.store(layer, key, value)
            attention.attend(layer, query)

    return step


if __name__ == "__main__":
    main()
