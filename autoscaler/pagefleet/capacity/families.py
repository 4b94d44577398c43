"""The model families that the planner knows: what their config.json leaves out, and what they need of an engine."""

from dataclasses import dataclass

LATENT_ATTENTION = "multi-head latent attention"
ATTENTION_SINKS = "attention sinks"
IMAGES = "images"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Say how to read a config.json of one model type."""

    has_head_for_each_query: bool = False
    """Every query head has its own keys and values, so that their number is not written."""
    ties_head_unless_told: bool = False
    head_dim: int | None = None
    """Where the configuration leaves it out and it is not hidden size over heads."""
    full_attention_every: int = 1
    """Every so many layers one looks at all tokens, the others at a window, where the layers are not listed."""
    needs: tuple[str, ...] = ()


_GROUPED = Family()
_ONE_TO_ONE = Family(has_head_for_each_query=True, ties_head_unless_told=True)
_LATENT = Family(needs=(LATENT_ATTENTION,))

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            *("llama", "mistral", "mixtral", "ministral", "smollm3", "granite", "granitemoe", "helium", "arcee"),
            *("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "olmo", "olmo2", "olmo3", "olmoe", "seed_oss"),
            *(
                "phi",
                "phi3",
                "starcoder2",
                "stablelm",
                "glm",
                "glm4",
                "nemotron",
                "exaone4",
                "ernie4_5",
                "hunyuan_v1_dense",
            ),
        ),
        _GROUPED,
    ),
    **dict.fromkeys(("gpt2", "gptj", "gpt_neo", "opt", "codegen"), _ONE_TO_ONE),
    "gpt_neox": Family(has_head_for_each_query=True),
    "cohere": Family(ties_head_unless_told=True),
    "cohere2": Family(ties_head_unless_told=True, full_attention_every=4),
    "gemma": Family(ties_head_unless_told=True, head_dim=256),
    "gemma2": Family(ties_head_unless_told=True, head_dim=256, full_attention_every=2),
    "gemma3_text": Family(ties_head_unless_told=True, head_dim=256, full_attention_every=6),
    "gpt_oss": Family(head_dim=64, full_attention_every=2, needs=(ATTENTION_SINKS,)),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
}
"""By `model_type`; a GGUF file's architecture is mapped to one before."""

WRAPPERS = ("gemma3", "mistral3", "llava", "qwen2_vl", "qwen2_5_vl", "llama4", "paligemma", "internvl", "pixtral")
"""Types whose language model stands in `text_config`, beside parts for images."""
