"""Read the config.json of a model: checked facts, or a sentence on what is missing or contradicts itself."""

from collections.abc import Mapping
from typing import Any

from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.families import FAMILIES, IMAGES, LATENT_ATTENTION, WRAPPERS, Family
from pagefleet.capacity.model_facts import Architecture, Experts, LatentAttention

# The same number under the names that families give it.
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")

LARGEST = 2**40
"""No size of a model comes near it; a larger number is damage, and would only overflow later."""


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Read the dictionary of a config.json; raises CannotPlan."""
    model_type, text, family, needs = _family(config)
    query_heads = _number(text, _QUERY_HEADS)
    hidden_size = _number(text, _HIDDEN)
    kv_heads = _kv_heads(text, family, query_heads)
    layers = _number(text, _LAYERS)
    experts = _experts(text)
    return Architecture(
        model_type=model_type,
        hidden_size=hidden_size,
        intermediate_size=_intermediate(text, hidden_size, experts),
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(text, family, hidden_size, query_heads),
        vocabulary_size=_number(text, ("vocab_size",)),
        context_length=_number(text, _CONTEXT),
        windows=_windows(text, family, layers),
        latent=_latent(text) if LATENT_ATTENTION in needs else None,
        experts=experts,
        has_capped_scores=_told(config, text, "attn_logit_softcapping", None) is not None,
        ties_head=bool(_told(config, text, "tie_word_embeddings", family.ties_head_unless_told)),
        draft_layers=_number(text, ("num_nextn_predict_layers",), default=0, least=0),
        stored_dtype=str(_told(config, text, "dtype", _told(config, text, "torch_dtype", "bfloat16"))),
        quantization=_quantization(_told(config, text, "quantization_config", None)),
        needs=needs,
    )


def _family(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], Family, tuple[str, ...]]:
    """Return the language model's type and part of the configuration, its family, and what it needs."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CannotPlan('config.json has no model_type, so it is no language model\'s: for example "llama"')
    text: Mapping[str, Any] = config
    needs: tuple[str, ...] = ()
    if isinstance(config.get("text_config"), dict):
        text, needs = config["text_config"], (IMAGES,)
    elif model_type in WRAPPERS:
        raise CannotPlan(f"config.json is of type {model_type} but has no text_config: give the original file")
    text_type = str(text.get("model_type", model_type))
    family = FAMILIES.get(text_type)
    if family is None:
        raise CannotPlan(
            f"model type {text_type} is unknown to the planner: known are decoders such as "
            f"llama, mistral, qwen3, gemma3_text, phi3 and gpt_oss ({len(FAMILIES)} types)"
        )
    return text_type, text, family, (*family.needs, *needs)


def _told(config: Mapping[str, Any], text: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return what the outer or the language model's part says; None counts as nothing."""
    for part in (text, config):
        if part.get(key) is not None:
            return part[key]
    return default


def _number(config: Mapping[str, Any], keys: tuple[str, ...], *, default: int | None = None, least: int = 1) -> int:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < LARGEST:
            raise CannotPlan(f"{key} in config.json is {value!r}: it must be a whole number from {least} on")
        return value
    if default is None:
        raise CannotPlan(f"config.json has no {keys[0]}: give the model's original config.json")
    return default


def _kv_heads(config: Mapping[str, Any], family: Family, query_heads: int) -> int:
    if config.get("multi_query") is True:
        return 1
    kv_heads = _number(config, _KV_HEADS, default=query_heads if family.has_head_for_each_query else 0)
    if not kv_heads:
        raise CannotPlan(
            f"config.json has no num_key_value_heads, and models of this type share keys among their {query_heads} "
            f"query heads, so the cache's size is unknown: write it, for example {max(1, query_heads // 4)}, or "
            f"{query_heads} if none are shared"
        )
    if query_heads % kv_heads:
        raise CannotPlan(
            f"num_key_value_heads in config.json is {kv_heads}, which does not divide the {query_heads} query heads: "
            "give the model's original config.json"
        )
    return kv_heads


def _head_dim(config: Mapping[str, Any], family: Family, hidden_size: int, query_heads: int) -> int:
    """Heads times their size need not be the hidden size (Qwen3, Gemma), but then the size must be told."""
    if config.get("head_dim") is not None:
        return _number(config, ("head_dim",))
    if family.head_dim is not None:
        return family.head_dim
    if hidden_size % query_heads:
        raise CannotPlan(
            f"hidden_size {hidden_size} in config.json is no multiple of {query_heads} heads, and has no head_dim: "
            f"write head_dim, for example {max(1, hidden_size // query_heads)}"
        )
    return hidden_size // query_heads


def _experts(config: Mapping[str, Any]) -> Experts | None:
    total = _number(config, _EXPERTS, default=0, least=0)
    if total < 2:
        return None
    per_token = _number(config, _EXPERTS_PER_TOKEN)
    if per_token > total:
        raise CannotPlan(f"num_experts_per_tok in config.json is {per_token}, more than the {total} experts there are")
    return Experts(total=total, per_token=per_token)


def _intermediate(config: Mapping[str, Any], hidden_size: int, experts: Experts | None) -> int:
    dense = _number(config, _INTERMEDIATE, default=4 * hidden_size)
    if experts is None:
        return dense
    return experts.per_token * _number(config, ("moe_intermediate_size",), default=dense)


def _windows(config: Mapping[str, Any], family: Family, layers: int) -> tuple[int | None, ...]:
    if layers > 10_000:
        raise CannotPlan(f"num_hidden_layers in config.json is {layers}: models have at most some hundred layers")
    window = _number(config, ("sliding_window",), default=0, least=0)
    kinds = config.get("layer_types")
    if kinds is None:
        return _unlisted_windows(config, family, layers, window)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise CannotPlan(f"layer_types in config.json must list num_hidden_layers {layers} layers, one by one")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise CannotPlan(
                f"config.json has layers of type {kind}, which keep a state that the planner cannot size: known are "
                "full_attention and sliding_attention"
            )
        if kind == "sliding_attention" and not window:
            raise CannotPlan("config.json has sliding_attention layers but no sliding_window: for example 4096")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _unlisted_windows(config: Mapping[str, Any], family: Family, layers: int, window: int) -> tuple[int | None, ...]:
    if not window or config.get("use_sliding_window") is False:
        return (None,) * layers
    if "max_window_layers" in config:  # Qwen: so many layers at the front look at everything
        full = _number(config, ("max_window_layers",), least=0)
        return tuple(None if layer < full else window for layer in range(layers))
    every = _number(config, ("sliding_window_pattern",), default=family.full_attention_every)
    return tuple(None if every > 1 and (layer + 1) % every == 0 else window for layer in range(layers))


def _latent(config: Mapping[str, Any]) -> LatentAttention:
    return LatentAttention(
        kv_rank=_number(config, ("kv_lora_rank",)), rotary_dim=_number(config, ("qk_rope_head_dim",))
    )


def _quantization(config: Any) -> str | None:
    if not isinstance(config, dict):
        return None
    return str(config.get("quant_method") or "unknown")
