"""Join config.json and the headers of the weights, and refuse where one gives the other the lie."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagefleet.capacity.errors import CannotPlan
from pagefleet.capacity.model_config import read_architecture
from pagefleet.capacity.model_facts import Architecture, ModelFacts
from pagefleet.capacity.weight_facts import FLOAT_DTYPES, Role, Tensor, tensors_of_headers, weight_facts

_QUERY_NAMES = ("self_attn.q_proj.weight", "attn_q.weight")
_KEY_NAMES = ("self_attn.k_proj.weight", "attn_k.weight")


def read_model(name: str, config: Mapping[str, Any], headers: Iterable[Mapping[str, Any]]) -> ModelFacts:
    """Return the facts of a model from its config.json and the headers of its safetensors files; raises CannotPlan."""
    return join_facts(name, config, tensors_of_headers(headers))


def join_facts(name: str, config: Mapping[str, Any], tensors: Sequence[Tensor]) -> ModelFacts:
    """Return the facts of a model whose tensors are known; raises CannotPlan when they contradict the configuration."""
    architecture = read_architecture(config)
    _check_layers(architecture, tensors)
    _check_vocabulary(architecture, tensors)
    _check_heads(architecture, tensors)
    if not any(tensor.role is Role.HEAD for tensor in tensors):
        architecture = replace(architecture, ties_head=True)
    weights = weight_facts(tensors, layers=architecture.layers, ties_head=architecture.ties_head)
    return ModelFacts(name=name, architecture=architecture, weights=weights)


def _check_layers(architecture: Architecture, tensors: Sequence[Tensor]) -> None:
    found = len({tensor.layer for tensor in tensors if tensor.layer is not None})
    told = architecture.layers
    if found not in (told, told + architecture.draft_layers):
        raise CannotPlan(
            f"num_hidden_layers in config.json is {told}, but the weights have {found} layers: give the config.json "
            "and all weight files of one model"
        )


def _check_vocabulary(architecture: Architecture, tensors: Sequence[Tensor]) -> None:
    embedding = next((tensor for tensor in tensors if tensor.role is Role.EMBEDDING), None)
    if embedding is None or len(embedding.shape) != 2:
        raise CannotPlan("the weights have no embedding table, so a file is missing: give all of the model's files")
    if embedding.shape[0] < architecture.vocabulary_size:
        raise CannotPlan(
            f"vocab_size in config.json is {architecture.vocabulary_size}, but the embedding table has "
            f"{embedding.shape[0]} rows: give the model's original config.json"
        )


def _check_heads(architecture: Architecture, tensors: Sequence[Tensor]) -> None:
    if architecture.latent is not None:
        return
    for key, names, heads in (
        ("num_attention_heads", _QUERY_NAMES, architecture.query_heads),
        ("num_key_value_heads", _KEY_NAMES, architecture.kv_heads),
    ):
        for tensor in tensors:
            if tensor.name.endswith(names) and tensor.dtype in FLOAT_DTYPES and len(tensor.shape) == 2:
                _check_rows(tensor, key, heads, architecture.head_dim)
                break


def _check_rows(tensor: Tensor, key: str, heads: int, head_dim: int) -> None:
    rows = tensor.shape[0]
    if rows != heads * head_dim:
        fitting = f"{key}: {rows // head_dim}" if rows % head_dim == 0 else f"head_dim: {max(1, rows // heads)}"
        raise CannotPlan(
            f"config.json says {heads} heads of {head_dim} numbers for {key}, but {tensor.name} has {rows} rows, not "
            f"{heads * head_dim}: write {fitting}, or give the model's original config.json"
        )
