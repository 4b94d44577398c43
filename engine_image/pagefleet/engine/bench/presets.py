"""Models made for measuring: Llama decoders of three sizes, random weights and a tokenizer, made once and kept."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pagefleet.engine.bench.preset_tokenizer import write_tokenizer
from pagefleet.engine.errors import StartupError
from pagefleet.engine.gguf_cache import cache_folder

SEED = 1234
WEIGHT_DEVIATION = 0.02
"""Standard deviation of all weights but those of norms, which are 1."""

CONTEXT_LENGTH = 2048

FORMAT = "3"
"""Part of the folder's name: raise it when what is written changes."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Size a Llama decoder with heads of 64 numbers."""

    hidden_size: int
    layers: int
    query_heads: int
    kv_heads: int
    intermediate_size: int
    vocabulary_size: int
    ties_head: bool = False


PRESETS = {
    "S": Preset(
        hidden_size=384,
        layers=6,
        query_heads=6,
        kv_heads=2,
        intermediate_size=1024,
        vocabulary_size=16_000,
        ties_head=True,
    ),
    "M": Preset(hidden_size=768, layers=12, query_heads=12, kv_heads=4, intermediate_size=2048, vocabulary_size=32_000),
    "L": Preset(
        hidden_size=1024, layers=24, query_heads=16, kv_heads=8, intermediate_size=4864, vocabulary_size=32_000
    ),
}
"""15.6M, 125M and 500M parameters."""


def preset_folder(name: str) -> Path:
    """Return the folder of a preset's bfloat16 checkpoint and tokenizer, written now if it is not in the cache.

    Raises StartupError when there is no room for it.
    """
    folder = cache_folder() / "bench" / f"{name}-seed{SEED}-{FORMAT}"
    if (folder / "config.json").is_file():
        return folder
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
        write_random_llama(PRESETS[name], temporary)
        write_tokenizer(PRESETS[name].vocabulary_size, temporary)
        temporary.rename(folder)  # whole or not at all, also when two benchmarks begin at once
    except OSError as error:
        if (folder / "config.json").is_file():
            return folder
        raise StartupError(
            f"preset {name} cannot be written to {folder}: {error}; set PAGEFLEET_CACHE to a folder with room"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write_random_llama(preset: Preset, folder: Path, *, context_length: int = CONTEXT_LENGTH) -> None:
    """Write configuration and weights in bfloat16; they depend on the sizes alone."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    head_dim = preset.hidden_size // preset.query_heads
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=preset.vocabulary_size,
        hidden_size=preset.hidden_size,
        intermediate_size=preset.intermediate_size,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.query_heads,
        num_key_value_heads=preset.kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context_length,
        tie_word_embeddings=preset.ties_head,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        dtype="bfloat16",
    ).save_pretrained(folder)
    generator = torch.Generator().manual_seed(SEED)
    tensors: dict[str, Any] = {}
    for weight, size in _weight_sizes(preset, head_dim):
        values = torch.ones(size) if len(size) == 1 else WEIGHT_DEVIATION * torch.randn(size, generator=generator)
        tensors[weight] = values.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _weight_sizes(preset: Preset, head_dim: int) -> list[tuple[str, tuple[int, ...]]]:
    hidden, queries, keys = preset.hidden_size, preset.query_heads * head_dim, preset.kv_heads * head_dim
    sizes: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (preset.vocabulary_size, hidden))]
    for layer in range(preset.layers):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (preset.intermediate_size, hidden),
            "mlp.up_proj": (preset.intermediate_size, hidden),
            "mlp.down_proj": (hidden, preset.intermediate_size),
        }
        sizes += [(f"model.layers.{layer}.{part}.weight", size) for part, size in parts.items()]
    sizes.append(("model.norm.weight", (hidden,)))
    if not preset.ties_head:
        sizes.append(("lm_head.weight", (preset.vocabulary_size, hidden)))
    return sizes
