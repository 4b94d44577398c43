import pytest

from pagefleet.engine.cache_plan import MIB, CachePlan, MemoryFacts, cache_budget_bytes, plan_cache
from pagefleet.engine.errors import StartupError

GIB = 1024 * MIB


def facts(used: int = GIB, available: int = 20 * GIB) -> MemoryFacts:
    return MemoryFacts(limit=10 * GIB, available=available, used=used, activations=GIB)


def test_the_share_less_what_is_in_use() -> None:
    assert cache_budget_bytes(facts(), utilization=0.9, override_bytes=None) == 7 * GIB


def test_what_others_hold_cannot_be_had() -> None:
    assert cache_budget_bytes(facts(available=3 * GIB), utilization=0.9, override_bytes=None) == 2 * GIB


def test_the_override_wins() -> None:
    assert cache_budget_bytes(facts(used=10 * GIB), utilization=0.1, override_bytes=5) == 5


def test_no_room_beside_the_weights() -> None:
    with pytest.raises(StartupError) as error:
        cache_budget_bytes(facts(used=4 * GIB), utilization=0.5, override_bytes=None)
    assert str(error.value) == (
        "--gpu-memory-utilization 0.5 of 10240 MiB leaves no memory for the KV cache: weights and activations take "
        "5120 MiB; use --gpu-memory-utilization 0.55 or more"
    )
    with pytest.raises(StartupError, match="use a smaller model"):
        cache_budget_bytes(facts(used=9 * GIB), utilization=0.9, override_bytes=None)


def plan(budget: int, max_model_len: int | None = None, max_num_seqs: int = 1000) -> CachePlan:
    return plan_cache(
        budget,
        bytes_per_block=MIB,
        block_size=16,
        context_length=2048,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
    )


@pytest.mark.parametrize(
    ("budget_mib", "max_model_len", "max_num_seqs", "blocks", "longest"),
    [
        (500, None, 1000, 500, 2048),  # the model's context
        (100, None, 1000, 100, 1600),  # less, because the cache holds less
        (100, 160, 1000, 100, 160),
        (500, 160, 4, 40, 160),  # no more than four sequences can fill
    ],
)
def test_blocks_and_length(
    budget_mib: int, max_model_len: int | None, max_num_seqs: int, blocks: int, longest: int
) -> None:
    made = plan(budget_mib * MIB, max_model_len, max_num_seqs)
    assert made == CachePlan(blocks_total=blocks, max_model_len=longest, kv_cache_bytes=blocks * MIB)


def test_longer_than_the_model() -> None:
    with pytest.raises(StartupError, match="--max-model-len 4096 is longer than the model's context: use at most 2048"):
        plan(500 * MIB, 4096)


def test_too_little_for_one_sequence() -> None:
    with pytest.raises(StartupError) as error:
        plan(10 * MIB, 320)
    assert str(error.value) == (
        "the KV cache has 10 MiB, one sequence of 320 tokens needs 20 MiB: use --max-model-len 160, or give the cache "
        "20 MiB or more (--kv-cache-memory-bytes, --gpu-memory-utilization)"
    )
    with pytest.raises(StartupError, match="one sequence of 16 tokens needs 1 MiB: give the cache 1 MiB or more"):
        plan(100)
