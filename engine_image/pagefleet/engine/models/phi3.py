"""The Phi-3 family (arXiv 2404.14219): fused weights, part of each head rotated, long contexts by another rotation."""

from typing import Any

from pagefleet.engine.kernels.interface import LayerAttention
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.llama import describe_llama


def describe_phi3(config: Any) -> DecoderDescription:
    """Describe Phi-3 and Phi-4-mini (`Phi3ForCausalLM`)."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return describe_llama(
        config,
        rotary_dim=int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0)),
        attention=(LayerAttention(window=config.sliding_window),) * config.num_hidden_layers,
        has_qkv_bias=False,
        has_output_bias=False,
        is_fused=True,
    )
