"""Measure what the widest step takes beside weights and cache, by computing one before the cache is sized.

The step has as many rows as a step may have, the longest chunk of one prompt among them, and as many sequences that
sample, each with every option that costs memory. Of layers that are alike one is computed: what a layer takes is free
again when the next begins, so the pass takes no longer than a small warm-up.
"""

import torch

from pagefleet.engine import machine
from pagefleet.engine.allocator import release_free_heap
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.interface import AttentionBatch, PagedAttention
from pagefleet.engine.models.interface import Model
from pagefleet.engine.sampler import sample
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.sequence import Sequence
from pagefleet.engine.token_scores import SampledScores

HUNGRIEST = SamplingParameters(max_tokens=1, temperature=1.0, top_p=0.9, top_k=50, min_p=0.01, logprobs=5)


@torch.inference_mode()
def measure_activations(
    model: Model, attention: PagedAttention, *, max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int
) -> int | None:
    """Return the bytes, or None where this system does not tell; `attention` has no cache yet, and is used up.

    Raises StartupError when not even this step fits a GPU.
    """
    lengths = widest_step(max_num_batched_tokens, max_num_seqs, max_model_len)
    batch = batch_of(lengths, attention.shape.block_size, attention.shape.device)
    blocks = 1 + batch.block_tables[-1][-1]
    attention.allocate(blocks, plain_slots=blocks)
    attention.zero(list(range(blocks)), list(range(blocks)))  # its pages are in use before the measurement
    try:
        peak = _cuda_peak if attention.shape.device.type == "cuda" else _resident_peak
        return peak(model, attention, batch)
    except torch.OutOfMemoryError as error:
        raise StartupError(
            f"a step of --max-num-batched-tokens {max_num_batched_tokens} and --max-num-seqs {max_num_seqs} does not "
            f"fit the GPU beside the weights: use --max-num-batched-tokens {max(1, max_num_batched_tokens // 2)} and "
            f"--max-num-seqs {max(1, max_num_seqs // 2)}"
        ) from error


def widest_step(max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int) -> list[int]:
    """Return the rows of each sequence: one at least, and the first as many as a step and a context hold."""
    lengths = []
    left = max_num_batched_tokens - max_num_seqs
    for _ in range(max_num_seqs):
        more = min(left, max_model_len - 1)
        lengths.append(1 + more)
        left -= more
    return lengths


def batch_of(lengths: list[int], block_size: int, device: torch.device) -> AttentionBatch:
    """Return prompts of these lengths in blocks of their own; those of one token share the last block."""
    tables: list[list[int]] = []
    slots: list[int] = []
    used = 0
    for length in lengths:
        blocks = -(-length // block_size)
        tables.append(list(range(used, used + blocks)))
        slots += range(used * block_size, used * block_size + length)
        used += blocks if length > 1 else 0
    return AttentionBatch(
        positions=torch.cat([torch.arange(length) for length in lengths]).to(device),
        slots=torch.tensor(slots, device=device),
        query_lengths=lengths,
        context_lengths=lengths,
        block_tables=tables,
        plain_slots=torch.arange(1 + tables[-1][-1], dtype=torch.int32),  # of a packed cache: each block's own number
    )


def _resident_peak(model: Model, attention: PagedAttention, batch: AttentionBatch) -> int | None:
    release_free_heap()  # memory that was used before would hide what the step takes
    peak = machine.PeakMemory()
    if not peak.reset():
        return None
    before, files_before = machine.memory_used_bytes(), machine.mapped_file_bytes() or 0
    _compute(model, attention, batch)
    code = (machine.mapped_file_bytes() or 0) - files_before  # read from libraries for the first time
    taken = max(0, peak.bytes() - before - code)
    release_free_heap()
    return taken


def _cuda_peak(model: Model, attention: PagedAttention, batch: AttentionBatch) -> int:
    device = attention.shape.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _compute(model, attention, batch)
    taken = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return taken


def _compute(model: Model, attention: PagedAttention, batch: AttentionBatch) -> None:
    attention.begin_step(batch)
    token_ids = torch.zeros_like(batch.slots)
    hidden = model.forward_widest(token_ids, batch.positions, attention)
    ends = torch.tensor(batch.query_lengths, device=hidden.device).cumsum(0) - 1
    sequences = [
        Sequence.from_prompt(f"profile-{index}", [0], HUNGRIEST, arrival_s=0.0)
        for index in range(len(batch.query_lengths))
    ]
    logits = model.logits(hidden[ends])
    scores = SampledScores(logits, sequences)
    scores.record(sample(logits, sequences, frozenset()))
