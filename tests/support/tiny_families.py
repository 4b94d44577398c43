"""Tiny configurations of the model families that run natively, with everything switched on that makes them differ."""

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
SIZES_OF_HEADS_OF_16 = {**SIZES, "hidden_size": 64}
"""For configurations that have no head size of their own."""
WINDOW = 24
"""Shorter than most prompts of the tests, and no multiple of a block."""

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.4],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}


def family_config(name: str) -> Any:
    """Return transformers' configuration of a family by its name in FAMILIES."""
    return FAMILIES[name]()


def _llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**SIZES, head_dim=16, attention_bias=True, mlp_bias=True)


def _mistral() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**SIZES, sliding_window=WINDOW, head_dim=16)


def _mistral_full() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**SIZES_OF_HEADS_OF_16, sliding_window=None)


def _qwen2() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**SIZES_OF_HEADS_OF_16, use_sliding_window=False, sliding_window=WINDOW, max_window_layers=1)


def _qwen2_sliding() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(
        **SIZES_OF_HEADS_OF_16,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
        tie_word_embeddings=True,
    )


def _qwen3() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)


def _gemma2() -> Any:
    from transformers import Gemma2Config

    return Gemma2Config(
        **SIZES,
        head_dim=16,
        sliding_window=WINDOW,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=30.0,
    )


def _gemma3() -> Any:
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        **SIZES,
        head_dim=16,
        sliding_window=WINDOW,
        query_pre_attn_scalar=12,
        sliding_window_pattern=3,
        final_logit_softcapping=30.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )


def _phi3() -> Any:
    from transformers import Phi3Config

    return Phi3Config(
        **SIZES_OF_HEADS_OF_16,
        sliding_window=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    )


def _phi3_longrope() -> Any:
    from transformers import Phi3Config

    sizes = {**SIZES_OF_HEADS_OF_16, "max_position_embeddings": 1024}
    return Phi3Config(
        **sizes, original_max_position_embeddings=256, rope_parameters={**LONGROPE, "partial_rotary_factor": 0.5}
    )


FAMILIES = {
    "llama": _llama,
    "mistral": _mistral,
    "mistral-full": _mistral_full,
    "qwen2": _qwen2,
    "qwen2-sliding": _qwen2_sliding,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "phi3-longrope": _phi3_longrope,
}
