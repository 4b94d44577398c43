"""The Gemma family: norms stored less 1, scaled embeddings, local and global layers, capped scores and logits."""

from typing import Any

from pagefleet.engine.errors import StartupError
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.llama import attention_by_type, describe_llama
from pagefleet.engine.models.rotary_parameters import rotary_embedding


def describe_gemma2(config: Any) -> DecoderDescription:
    """Describe Gemma 2 (`Gemma2ForCausalLM`, arXiv 2408.00118); raises StartupError."""
    return _describe(config, attention=_attention(config, config.attn_logit_softcapping))


def describe_gemma3(config: Any) -> DecoderDescription:
    """Describe the text model of Gemma 3 (`Gemma3ForCausalLM`, arXiv 2503.19786): local layers rotate faster.

    Scores are not capped, whatever the configuration says: heads are normalised instead. Raises StartupError.
    """
    kinds = {
        kind: rotary_embedding(config, config.head_dim, layer_type=kind) for kind in dict.fromkeys(config.layer_types)
    }
    return _describe(
        config,
        attention=_attention(config, None),
        rotary=tuple(kinds[kind] for kind in config.layer_types),
        has_head_norms=True,
    )


def _describe(config: Any, **options: Any) -> DecoderDescription:
    if getattr(config, "use_bidirectional_attention", False):
        raise StartupError(
            "the model attends in both directions (use_bidirectional_attention): it embeds text and generates none"
        )
    return describe_llama(
        config,
        context_length=config.max_position_embeddings,
        activation=config.hidden_activation,
        has_output_norms=True,
        norms_add_one=True,
        embedding_scale=config.hidden_size**0.5,
        logit_soft_cap=config.final_logit_softcapping,
        **options,
    )


def _attention(config: Any, soft_cap: float | None) -> Any:
    return attention_by_type(config, scale=config.query_pre_attn_scalar**-0.5, soft_cap=soft_cap)
