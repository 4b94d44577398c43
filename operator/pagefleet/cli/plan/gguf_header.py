"""A GGUF file's header as the planner reads models: the keys of a config.json, and the tensors.

The gguf library makes an object of each of the tokenizer's tokens: 4 s for 49,000 of them. Skipping them takes 0.1 s.
"""

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

from pagefleet.capacity import ModelFacts, join_facts
from pagefleet.capacity.weight_facts import DEQUANTIZED, Tensor
from pagefleet.cli.errors import UserMistake

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_STRING_BYTES = 2**24
MOST_ENTRIES = 2**24
"""A larger count is damage."""

# GGUF's value types: struct's letter for each number, and the two that hold others.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_MODEL_TYPES = {
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "deepseek2": "deepseek_v3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
"""Architectures that transformers calls by another name."""

# config.json's word for each key of a GGUF file, less the architecture that it begins with.
_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "context_length": "max_position_embeddings",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}


def read_gguf(path: Path) -> ModelFacts:
    """Return the facts of a model in a GGUF file; raises UserMistake or CannotPlan."""
    try:
        with path.open("rb") as stream:
            values, tensors = _read(stream)
    except OSError as error:
        raise UserMistake(f"file {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        raise UserMistake(f"file {path} cannot be read as GGUF ({error}): download it again") from None
    return join_facts(path.stem, _config(values, tensors), tensors)


def _read(stream: BinaryIO) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    if stream.read(4) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version, tensor_count, value_count = struct.unpack("<IQQ", stream.read(20))
    if version not in VERSIONS or max(tensor_count, value_count) > MOST_ENTRIES:
        raise ValueError(f"version {version} with {tensor_count} tensors; versions {VERSIONS} are known")
    values = {}
    for _ in range(value_count):
        key = _string(stream)
        values[key] = _value(stream, _number(stream, "I"))
    return values, tuple(_tensor(stream) for _ in range(tensor_count))


def _number(stream: BinaryIO, letter: str) -> Any:
    return struct.unpack(f"<{letter}", stream.read(struct.calcsize(f"<{letter}")))[0]


def _string(stream: BinaryIO) -> str:
    length = _number(stream, "Q")
    if length > MOST_STRING_BYTES:
        raise ValueError(f"a text of {length} bytes")
    content = stream.read(length)
    if len(content) < length:
        raise ValueError("it ends within its header")
    return content.decode()


def _value(stream: BinaryIO, kind: int) -> Any:
    """Return a value, None for an array: those of the tokenizer are skipped, and no other is needed."""
    if kind in _NUMBERS:
        return _number(stream, _NUMBERS[kind])
    if kind == _STRING:
        return _string(stream)
    if kind != _ARRAY:
        raise ValueError(f"a value of type {kind}")
    element, count = _number(stream, "I"), _number(stream, "Q")
    if count > MOST_ENTRIES or element == _ARRAY:
        raise ValueError(f"an array of {count} values of type {element}")
    if element in _NUMBERS:
        stream.seek(count * struct.calcsize(f"<{_NUMBERS[element]}"), 1)
    else:
        for _ in range(count):
            _value(stream, element)
    return None


def _tensor(stream: BinaryIO) -> Tensor:
    name = _string(stream)
    dimensions = _number(stream, "I")
    if dimensions > 8:
        raise ValueError(f"tensor {name} has {dimensions} dimensions")
    inputs_first = struct.unpack(f"<{dimensions}Q", stream.read(8 * dimensions))
    _kind, _offset = struct.unpack("<IQ", stream.read(12))
    shape = tuple(reversed(inputs_first))
    return Tensor(name, DEQUANTIZED, shape, 4 * math.prod(shape))  # as the loader makes them: float32


def _config(values: dict[str, Any], tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    architecture = values.get("general.architecture")
    rows = next((each.shape[0] for each in tensors if each.name == "token_embd.weight"), None)
    named = {word: values.get(f"{architecture}.{key}") for key, word in _KEYS.items()}
    return {
        "model_type": _MODEL_TYPES.get(str(architecture), architecture),
        "vocab_size": rows,
        "tie_word_embeddings": not any(each.name == "output.weight" for each in tensors),
        "dtype": "GGUF",
        **named,
    }
