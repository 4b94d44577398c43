"""The transformers back end: its models over our paged attention equal the same models over their own cache."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.equality.oracle import reference_logits, reference_tokens
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.tiny_families import SIZES, WINDOW, family_config
from tests.support.tiny_models import save_random_model

NEW_TOKENS = 12
GREEDY = SamplingParameters(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
ATOL = 1e-4


def gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=384,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=256,
        scale_attn_by_inverse_layer_idx=True,
        bos_token_id=0,
        eos_token_id=1,
    )


def opt() -> Any:
    from transformers import OPTConfig

    return OPTConfig(
        vocab_size=384,
        hidden_size=48,
        ffn_dim=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=32,
        do_layer_norm_before=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )


def gpt_neox() -> Any:
    from transformers import GPTNeoXConfig

    return GPTNeoXConfig(
        vocab_size=384,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )


def phi() -> Any:
    from transformers import PhiConfig

    return PhiConfig(**SIZES)


def cohere2() -> Any:
    """Alternate rotated windows with layers that know no positions, and scale the logits behind the head."""
    from transformers import Cohere2Config

    return Cohere2Config(**SIZES, sliding_window=WINDOW, sliding_window_pattern=2, logit_scale=0.25)


def mixtral() -> Any:
    from transformers import MixtralConfig

    return MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2,
    "opt": opt,
    "gpt-neox": gpt_neox,
    "phi": phi,
    "cohere2": cohere2,
    "mixtral": mixtral,
    "llama": lambda: family_config("llama"),
    "qwen2": lambda: family_config("qwen2-sliding"),
    "gemma2": lambda: family_config("gemma2"),
}
NATIVE_TOO = ("llama", "qwen2", "gemma2")


def make_prompts() -> list[list[int]]:
    """Return 6 prompts, the first of one token, the last much longer than the window."""
    generator = random.Random(5)
    return [[generator.randrange(SIZES["vocab_size"]) for _ in range(length)] for length in (1, 8, 23, 31, 65, 120)]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the function that makes a checkpoint on first use."""

    @cache
    def make(name: str) -> Path:
        return save_random_model(CONFIGURATIONS[name](), tmp_path_factory.mktemp(name), weight_scale=0.3)

    return make


@cache
def expected(folder: Path) -> list[list[int]]:
    return [reference_tokens(folder, prompt, NEW_TOKENS) for prompt in PROMPTS]


def generate(folder: Path, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    defaults: dict[str, Any] = {"model_impl": "transformers", "kv_cache_memory_bytes": 2**23, "threads": 1}
    llm = LLM(EngineConfig(model=str(folder), **{**defaults, **options}))
    return [generation.token_ids for generation in llm.generate(prompts, GREEDY)]


@pytest.mark.parametrize("chunk", [9, 1000])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits(folder_of: Callable[[str], Path], name: str, chunk: int) -> None:
    model = load_engine_model(folder_of(name), model_impl="transformers")
    for prompt, logits in zip(PROMPTS, teacher_forced_logits(model, PROMPTS, chunk=chunk), strict=True):
        theirs = reference_logits(folder_of(name), prompt)
        assert (logits - theirs).abs().max() <= ATOL
        assert theirs.std() > 0.1, "logits that say nothing are close to any"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_greedy_tokens_alone_and_in_a_batch(folder_of: Callable[[str], Path], name: str) -> None:
    assert generate(folder_of(name), PROMPTS, block_size=8, long_prefill_token_threshold=11) == expected(
        folder_of(name)
    )
    assert generate(folder_of(name), PROMPTS[-1:]) == expected(folder_of(name))[-1:]


@pytest.mark.parametrize("name", NATIVE_TOO)
def test_native_code_gives_the_same(folder_of: Callable[[str], Path], name: str) -> None:
    native, other = (load_engine_model(folder_of(name), model_impl=impl) for impl in ("native", "transformers"))
    assert type(native) is not type(other)
    assert native.layer_attention != ()
    assert (native.query_heads, native.kv_heads, native.head_dim) == (other.query_heads, other.kv_heads, other.head_dim)
    assert native.weight_bytes == pytest.approx(other.weight_bytes, rel=0.01)
    assert native.context_length == other.context_length
    for ours, theirs in zip(
        teacher_forced_logits(native, PROMPTS, chunk=50), teacher_forced_logits(other, PROMPTS, chunk=50), strict=True
    ):
        assert (ours - theirs).abs().max() <= ATOL
    assert (native.implementation, other.implementation) == ("native", "transformers")
    assert generate(folder_of(name), PROMPTS, model_impl="native") == generate(folder_of(name), PROMPTS)
