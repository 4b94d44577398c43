"""Bytes of caches and weights, against the sizes that are known from elsewhere."""

from dataclasses import replace

import pytest

from pagefleet.capacity import CannotPlan, ModelFacts, read_model
from pagefleet.capacity.engine_profile import PAGEFLEET_CPU
from pagefleet.capacity.kv_formats import (
    KV_FORMATS,
    check_block_size,
    kv_block_bytes,
    kv_bytes_per_token,
    kv_reserve_bytes,
)
from pagefleet.capacity.model_config import read_architecture
from pagefleet.capacity.weight_facts import Role
from pagefleet.capacity.weight_formats import weights_bytes
from tests.autoscaler.builders import EIGHT_BILLION
from tests.support import checkpoints


def weights_of(model: ModelFacts, quantization: str, *, count: int = 1, dtype: str = "bfloat16") -> int:
    return weights_bytes(
        model, quantization=quantization, compute_dtype=dtype, tensor_parallel_size=count, copies_tied_head=False
    )


@pytest.mark.parametrize(
    ("checkpoint", "bytes_per_token"),
    [
        (checkpoints.llama_3_1_8b(), 131_072),
        (checkpoints.llama_3_3_70b(), 327_680),
        (checkpoints.qwen3_32b(), 262_144),
        (checkpoints.mistral_small_24b(), 163_840),
        (checkpoints.deepseek_r1(), 70_272),  # one latent vector for all heads
    ],
)
def test_published_cache_sizes(checkpoint: checkpoints.Checkpoint, bytes_per_token: int) -> None:
    architecture = read_model("m", *checkpoint).architecture
    assert kv_bytes_per_token(architecture, "bf16", block_size=16) == bytes_per_token
    assert kv_block_bytes(architecture, "bf16", block_size=16) == 16 * bytes_per_token


def test_heads_are_split_until_there_are_none_left_and_latents_never() -> None:
    llama, deepseek = (
        read_model("m", *checkpoint).architecture
        for checkpoint in (checkpoints.llama_3_3_70b(), checkpoints.deepseek_r1())
    )
    split = [kv_bytes_per_token(llama, "bf16", block_size=16, tensor_parallel_size=n) for n in (1, 2, 8, 16)]
    assert split == [327_680, 163_840, 40_960, 40_960]
    assert kv_bytes_per_token(deepseek, "bf16", block_size=16, tensor_parallel_size=8) == 70_272


@pytest.mark.parametrize(
    ("name", "block_size", "head_dim", "bits_per_value"),
    [
        ("bf16", 16, 64, 16),
        ("int8", 64, 128, 8.25),
        ("int4", 32, 64, 4.5),
        ("int4", 64, 64, 4.3125),
        ("k4v3", 64, 64, 3.8125),
        ("k4v3", 128, 128, 3.65625),
    ],
)
def test_bits_with_their_metadata(name: str, block_size: int, head_dim: int, bits_per_value: float) -> None:
    assert KV_FORMATS[name].bits_per_pair(block_size, head_dim) / 2 == bits_per_value


@pytest.mark.parametrize(("name", "share"), [("int8", 0.53), ("int4", 0.29), ("k4v3", 0.25)])
def test_quantized_caches_reach_their_share_of_bf16(name: str, share: float) -> None:
    block_size = KV_FORMATS[name].usual_block_size
    quantized, full = (
        kv_bytes_per_token(EIGHT_BILLION.architecture, each, block_size=block_size) for each in (name, "bf16")
    )
    assert quantized <= share * full


@pytest.mark.parametrize(("compute_dtype", "token_bytes"), [("bfloat16", 131_072), ("float32", 262_144)])
def test_sinks_and_last_blocks_stay_as_computed(compute_dtype: str, token_bytes: int) -> None:
    """Of 10 sequences: two sinks, the last block and one that a prompt crosses into; 2 blocks are filled by a step."""
    reserved, nothing = (
        kv_reserve_bytes(
            EIGHT_BILLION.architecture,
            name,
            compute_dtype=compute_dtype,
            block_size=32,
            sequences=10,
            step_tokens=64,
        )
        for name in ("int4", "bf16")
    )
    assert reserved == (10 * (2 + 1 + 1) + 2) * 32 * token_bytes
    assert nothing == 0


@pytest.mark.parametrize(
    ("name", "block_size", "sentence"),
    [
        ("int4", 16, "block size 16 is illegal for KV cache dtype int4, .* from 32 on: use 32"),
        ("k4v3", 32, "from 64 on: use 64"),
        ("int8", 24, "multiples of 16 .*: use 32"),
        ("bf16", 0, "block size 0 holds no token"),
    ],
)
def test_illegal_block_sizes(name: str, block_size: int, sentence: str) -> None:
    with pytest.raises(CannotPlan, match=sentence):
        check_block_size(name, block_size)


def test_windows_are_read_no_further_than_they_reach() -> None:
    architecture = read_model("m", *checkpoints.gpt_oss(layers=24, experts=32)).architecture
    full = kv_bytes_per_token(architecture, "bf16", block_size=16)
    assert kv_bytes_per_token(architecture, "bf16", block_size=16, context=128) == full
    read = kv_bytes_per_token(architecture, "bf16", block_size=16, context=1280)
    assert read == pytest.approx(full * (12 + 12 / 10) / 24)


def test_weights_by_format() -> None:
    weights = EIGHT_BILLION.weights
    linear = weights.count(Role.LINEAR, Role.KV_PROJECTION)
    assert weights.count() == 8_030_261_248
    assert weights_of(EIGHT_BILLION, "none") == 2 * 8_030_261_248
    assert weights_of(EIGHT_BILLION, "none", dtype="float32") == 4 * 8_030_261_248
    kept = 2 * (8_030_261_248 - linear)  # embedding, head, norms
    assert (weights_of(EIGHT_BILLION, "int8") - kept) / linear == pytest.approx(65 / 64, rel=0.002)
    assert (weights_of(EIGHT_BILLION, "int4") - kept) / linear == 4.3125 / 8
    assert (weights_of(EIGHT_BILLION, "sparse24") - kept) / linear / 2 == 0.5625


def test_norms_are_whole_on_every_accelerator() -> None:
    norms = 2 * EIGHT_BILLION.weights.count(Role.REPLICATED)
    whole = weights_of(EIGHT_BILLION, "none")
    assert weights_of(EIGHT_BILLION, "none", count=8) == (whole - norms) / 8 + norms


def test_a_tied_head_is_not_counted_and_draft_layers_neither() -> None:
    qwen = read_model("m", *checkpoints.qwen3_0_6b())
    assert qwen.weights.count() == pytest.approx(596e6, rel=0.001)
    deepseek = read_model("m", *checkpoints.deepseek_r1())
    assert deepseek.weights.count() == pytest.approx(671e9, rel=0.002)


def test_scores_of_soft_capped_layers_count_where_they_are_held() -> None:
    """Gemma 2 in bfloat16: 128 queries x 8 heads x 8,192 tokens, twice in float32 and once rounded."""
    config, _ = checkpoints.dense(
        layers=2, hidden=64, intermediate=128, heads=8, kv_heads=4, vocabulary=256, head_dim=8
    )
    capped = {**config, "model_type": "gemma2", "attn_logit_softcapping": 50.0, "sliding_window": 4096}
    architecture = read_architecture({**capped, "max_position_embeddings": 8192})
    holding = replace(PAGEFLEET_CPU, keeps_capped_scores=True)
    assert holding.capped_score_bytes(architecture, 2) == 128 * 8 * 8192 * 10
    assert holding.capped_score_bytes(replace(architecture, has_capped_scores=False), 2) == 0
    assert PAGEFLEET_CPU.capped_score_bytes(architecture, 2) == 0
