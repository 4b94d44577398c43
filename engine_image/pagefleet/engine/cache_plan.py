"""How many blocks the cache gets and how long a sequence may be. Pure arithmetic, with a sentence for each refusal."""

from dataclasses import dataclass

from pagefleet.engine.errors import StartupError

MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Say what the device has and what the engine needs beside the cache, in bytes."""

    limit: int
    """What the device, cgroup or machine has."""
    available: int
    """What others leave of it now."""
    used: int
    """What this process holds with the weights loaded."""
    activations: int
    """What the widest step needs at most."""


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """Size the cache."""

    blocks_total: int
    max_model_len: int
    kv_cache_bytes: int
    plain_slots: int = 0
    """Blocks of a packed cache that can be plain at the same time."""


def cache_budget_bytes(facts: MemoryFacts, *, utilization: float, override_bytes: int | None) -> int:
    """Return the bytes for the cache: the override, or the share of the limit less what is in use.

    Raises StartupError when the share is used up before the first block.
    """
    if override_bytes is not None:
        return override_bytes
    budget = int(facts.limit * utilization) - facts.used - facts.activations
    if budget <= 0:
        need = (facts.used + facts.activations) / facts.limit
        advice = (
            f"use --gpu-memory-utilization {min(1.0, need + 0.05):.2f} or more"
            if need < 0.95
            else "use a smaller model"
        )
        raise StartupError(
            f"--gpu-memory-utilization {utilization:g} of {facts.limit // MIB} MiB leaves no memory for the KV cache: "
            f"weights and activations take {(facts.used + facts.activations) // MIB} MiB; {advice}"
        )
    # What other processes hold now cannot be had, whatever our share is.
    return max(0, min(budget, facts.available - facts.activations))


def plan_cache(
    budget_bytes: int,
    *,
    bytes_per_block: int,
    block_size: int,
    context_length: int,
    max_model_len: int | None,
    max_num_seqs: int,
    plain_bytes_per_block: int = 0,
    plain_slots: int = 0,
) -> CachePlan:
    """Turn a budget into blocks; raises StartupError when not even one sequence fits.

    `context_length` is the model's; `max_model_len` None takes it, or what the cache holds if that is less.
    `plain_slots` of `plain_bytes_per_block` each is the most that a packed cache needs beside its blocks; a cache of
    fewer blocks needs one for each.
    """
    if max_model_len is not None and max_model_len > context_length:
        raise StartupError(
            f"--max-model-len {max_model_len} is longer than the model's context: use at most {context_length}"
        )
    affordable = _affordable_blocks(budget_bytes, bytes_per_block, plain_bytes_per_block, plain_slots)
    wanted = -(-(max_model_len or context_length) // block_size)
    if affordable < (wanted if max_model_len is not None else 1):
        blocks = wanted if max_model_len is not None else 1
        needed = blocks * bytes_per_block + min(blocks, plain_slots) * plain_bytes_per_block
        shorter = affordable * block_size
        advice = f"use --max-model-len {shorter}, or " if shorter > 1 else ""
        raise StartupError(
            f"the KV cache has {budget_bytes // MIB} MiB, one sequence of {max_model_len or block_size} tokens needs "
            f"{-(-needed // MIB)} MiB: {advice}give the cache {-(-needed // MIB)} MiB or more "
            "(--kv-cache-memory-bytes, --gpu-memory-utilization)"
        )
    longest = min(max_model_len or context_length, affordable * block_size)
    # More blocks than all sequences at full length can fill would only be reserved, never used.
    blocks_total = min(affordable, max_num_seqs * -(-longest // block_size))
    plain_slots = min(plain_slots, blocks_total)
    return CachePlan(
        blocks_total=blocks_total,
        max_model_len=longest,
        kv_cache_bytes=blocks_total * bytes_per_block + plain_slots * plain_bytes_per_block,
        plain_slots=plain_slots,
    )


def _affordable_blocks(budget_bytes: int, bytes_per_block: int, plain_bytes_per_block: int, plain_slots: int) -> int:
    behind_all_slots = (budget_bytes - plain_slots * plain_bytes_per_block) // bytes_per_block
    if behind_all_slots >= plain_slots:
        return behind_all_slots
    return min(plain_slots, budget_bytes // (bytes_per_block + plain_bytes_per_block))
