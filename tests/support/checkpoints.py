"""Headers of published checkpoints, written down as their shapes: nothing is downloaded, no weight exists."""

import functools
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagefleet.capacity.weight_facts import DTYPE_BITS

Shapes = Iterator[tuple[str, str, tuple[int, ...]]]
Checkpoint = tuple[dict[str, Any], list[dict[str, Any]]]
"""A config.json and the headers of its files."""


def header(tensors: Shapes) -> dict[str, Any]:
    """Return the safetensors header of tensors that are (name, format, shape)."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + -(-math.prod(shape) * DTYPE_BITS[dtype] // 8)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return entries


def dense(
    *,
    model_type: str = "llama",
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    head_dim: int = 128,
    context: int = 131_072,
    stores_head: bool = True,
    linear_dtype: str = "BF16",
    dtype: str = "BF16",
    **config: Any,
) -> Checkpoint:
    """Return a decoder of Llama's kind; `linear_dtype` F8_E4M3 has a scale for each row."""

    def tensors() -> Shapes:
        yield "model.embed_tokens.weight", dtype, (vocabulary, hidden)
        if stores_head:
            yield "lm_head.weight", dtype, (vocabulary, hidden)
        yield "model.norm.weight", dtype, (hidden,)
        for layer in range(layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", dtype, (hidden,)
            yield f"{prefix}.post_attention_layernorm.weight", dtype, (hidden,)
            for name, outputs, inputs in (
                ("self_attn.q_proj", heads * head_dim, hidden),
                ("self_attn.k_proj", kv_heads * head_dim, hidden),
                ("self_attn.v_proj", kv_heads * head_dim, hidden),
                ("self_attn.o_proj", hidden, heads * head_dim),
                ("mlp.gate_proj", intermediate, hidden),
                ("mlp.up_proj", intermediate, hidden),
                ("mlp.down_proj", hidden, intermediate),
            ):
                yield f"{prefix}.{name}.weight", linear_dtype, (outputs, inputs)
                if linear_dtype.startswith("F8"):
                    yield f"{prefix}.{name}.weight_scale", dtype, (outputs, 1)

    facts = {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "torch_dtype": {"BF16": "bfloat16", "F32": "float32"}[dtype],
    }
    return {**facts, **config}, [header(tensors())]


def llama_3_1_8b() -> Checkpoint:
    return dense(layers=32, hidden=4096, intermediate=14_336, heads=32, kv_heads=8, vocabulary=128_256)


def llama_3_3_70b(**config: Any) -> Checkpoint:
    return dense(layers=80, hidden=8192, intermediate=28_672, heads=64, kv_heads=8, vocabulary=128_256, **config)


def llama_3_3_70b_fp8() -> Checkpoint:
    return llama_3_3_70b(linear_dtype="F8_E4M3", quantization_config={"quant_method": "fp8"})


def qwen3_0_6b() -> Checkpoint:
    """Its file holds the tied head a second time."""
    return dense(
        model_type="qwen3",
        layers=28,
        hidden=1024,
        intermediate=3072,
        heads=16,
        kv_heads=8,
        vocabulary=151_936,
        context=40_960,
        tie_word_embeddings=True,
    )


def qwen3_32b() -> Checkpoint:
    return dense(
        model_type="qwen3",
        layers=64,
        hidden=5120,
        intermediate=25_600,
        heads=64,
        kv_heads=8,
        vocabulary=151_936,
        context=40_960,
    )


def mistral_small_24b() -> Checkpoint:
    """The language model in its multimodal wrapper, with a vision tower of 24 layers."""
    config, headers = dense(
        model_type="mistral",
        layers=40,
        hidden=5120,
        intermediate=32_768,
        heads=32,
        kv_heads=8,
        vocabulary=131_072,
    )

    def vision() -> Shapes:
        yield "multi_modal_projector.linear_1.weight", "BF16", (5120, 1024)
        yield "multi_modal_projector.linear_2.weight", "BF16", (5120, 5120)
        yield "multi_modal_projector.patch_merger.merging_layer.weight", "BF16", (1024, 4096)
        for number in range(24):
            for name in ("q", "k", "v", "o"):
                yield f"vision_tower.transformer.block{number}.{name}.weight", "BF16", (1024, 1024)
            for name in ("gate", "up", "down"):
                yield f"vision_tower.transformer.block{number}.{name}.weight", "BF16", (4096, 1024)

    return {"model_type": "mistral3", "text_config": config}, [*headers, header(vision())]


def gpt_oss(*, layers: int, experts: int, stored_hidden: int = 2880) -> Checkpoint:
    """Return gpt-oss-20b or -120b: experts of 4 bits in groups of 32 with a shared exponent.

    `stored_hidden` is the width of an expert's rows in memory: kernels pad it.
    """
    hidden, intermediate, head_dim, vocabulary = 2880, 2880, 64, 201_088

    def tensors() -> Shapes:
        yield "model.embed_tokens.weight", "BF16", (vocabulary, hidden)
        yield "lm_head.weight", "BF16", (vocabulary, hidden)
        for layer in range(layers):
            prefix = f"model.layers.{layer}"
            for name, outputs, inputs in (
                ("q", 4096, hidden),
                ("k", 512, hidden),
                ("v", 512, hidden),
                ("o", hidden, 4096),
            ):
                yield f"{prefix}.self_attn.{name}_proj.weight", "BF16", (outputs, inputs)
            yield f"{prefix}.mlp.router.weight", "BF16", (experts, hidden)
            for name, outputs in (("gate_up_proj", 2 * intermediate), ("down_proj", hidden)):
                yield f"{prefix}.mlp.experts.{name}_blocks", "U8", (experts, outputs, stored_hidden // 32, 16)
                yield f"{prefix}.mlp.experts.{name}_scales", "U8", (experts, outputs, hidden // 32)
                yield f"{prefix}.mlp.experts.{name}_bias", "BF16", (experts, outputs)

    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131_072,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4"},
    }
    return config, [header(tensors())]


@functools.cache  # 90,000 tensors
def deepseek_r1() -> Checkpoint:
    """Return DeepSeek-R1: 61 layers of latent attention and one for drafts, 256 experts in all but three layers."""
    hidden, vocabulary, heads, expert = 7168, 129_280, 128, 2048

    def tensors() -> Shapes:
        yield "model.embed_tokens.weight", "BF16", (vocabulary, hidden)
        yield "lm_head.weight", "BF16", (vocabulary, hidden)
        for layer in range(62):
            prefix = f"model.layers.{layer}"
            for name, outputs, inputs in (
                ("q_a_proj", 1536, hidden),
                ("q_b_proj", heads * 192, 1536),
                ("kv_a_proj_with_mqa", 576, hidden),
                ("kv_b_proj", heads * 256, 512),
                ("o_proj", hidden, heads * 128),
            ):
                yield f"{prefix}.self_attn.{name}.weight", "F8_E4M3", (outputs, inputs)
            parts = (
                [("mlp", 18_432)]
                if layer < 3
                else [("mlp.shared_experts", expert), *((f"mlp.experts.{index}", expert) for index in range(256))]
            )
            for part, width in parts:
                yield f"{prefix}.{part}.gate_proj.weight", "F8_E4M3", (width, hidden)
                yield f"{prefix}.{part}.up_proj.weight", "F8_E4M3", (width, hidden)
                yield f"{prefix}.{part}.down_proj.weight", "F8_E4M3", (hidden, width)

    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "num_nextn_predict_layers": 1,
        "hidden_size": hidden,
        "intermediate_size": 18_432,
        "moe_intermediate_size": expert,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "vocab_size": vocabulary,
        "max_position_embeddings": 163_840,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8"},
    }
    return config, [header(tensors())]


def write_model(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write config.json and files that are as long as real ones, but hold nothing behind their headers."""
    folder.mkdir(parents=True)
    config, headers = checkpoint
    (folder / "config.json").write_text(json.dumps(config))
    weight_map: dict[str, str] = {}
    for number, header in enumerate(headers):
        name = f"model-{number}.safetensors"
        content = json.dumps(header).encode()
        end = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
        with (folder / name).open("wb") as stream:
            stream.write(struct.pack("<Q", len(content)) + content)
            stream.truncate(8 + len(content) + end)  # a hole: no disk is used
        weight_map |= dict.fromkeys(set(header) - {"__metadata__"}, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
