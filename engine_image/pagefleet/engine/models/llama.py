"""The families that are Llama but for an option: Llama 2 and 3, Mistral, Qwen 2 and 3 (arXiv 2302.13971)."""

from typing import Any

from pagefleet.engine.kernels.interface import LayerAttention
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.rotary_parameters import rotary_embedding, static_context_length


def describe_llama(config: Any, **options: Any) -> DecoderDescription:
    """Describe Llama (`LlamaForCausalLM`); `options` are what a family has otherwise."""
    query_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // query_heads
    has_bias = bool(getattr(config, "attention_bias", False))
    layers = config.num_hidden_layers
    defaults: dict[str, Any] = {
        "query_heads": query_heads,
        "kv_heads": config.num_key_value_heads or query_heads,
        "head_dim": head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "vocabulary_size": config.vocab_size,
        "context_length": static_context_length(config),
        "norm_epsilon": config.rms_norm_eps,
        "attention": (LayerAttention(),) * layers,
        "rotary_dim": head_dim,
        "activation": getattr(config, "hidden_act", None),
        "has_qkv_bias": has_bias,
        "has_output_bias": has_bias,
        "has_mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "ties_head": config.tie_word_embeddings,
    }
    if "rotary" not in options:
        rotary = rotary_embedding(config, head_dim, rotary_dim=options.get("rotary_dim"))
        defaults["rotary"] = (rotary,) * layers
    return DecoderDescription(**{**defaults, **options})


def describe_mistral(config: Any) -> DecoderDescription:
    """Describe Mistral (`MistralForCausalLM`, arXiv 2310.06825): one window for all layers, or none."""
    return describe_llama(config, attention=(LayerAttention(window=config.sliding_window),) * config.num_hidden_layers)


def describe_qwen2(config: Any) -> DecoderDescription:
    """Describe Qwen 2 and 2.5 (`Qwen2ForCausalLM`, arXiv 2407.10671): QKV has a bias, the upper layers may slide."""
    return describe_llama(config, attention=attention_by_type(config), has_qkv_bias=True, has_output_bias=False)


def describe_qwen3(config: Any) -> DecoderDescription:
    """Describe Qwen 3 (`Qwen3ForCausalLM`, arXiv 2505.09388): query and key heads are normalised."""
    return describe_llama(config, attention=attention_by_type(config), has_head_norms=True)


def attention_by_type(
    config: Any, *, scale: float | None = None, soft_cap: float | None = None
) -> tuple[LayerAttention, ...]:
    """Return how layers attend that are listed as `full_attention` or `sliding_attention`."""
    return tuple(
        LayerAttention(
            scale=scale,
            window=config.sliding_window if layer_type == "sliding_attention" else None,
            soft_cap=soft_cap,
        )
        for layer_type in config.layer_types
    )
