"""Our entry in transformers' attention interface: models built with it hand their queries, keys and values to us."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

NAME = "pagefleet"
"""What `attn_implementation` is called. No mask belongs to it, so models make none."""

PASSED_ALONG = frozenset({"position_ids", "cache_position", "position_embeddings"})
"""Tensors that models pass to every attention function and that change nothing in it."""


@dataclass(frozen=True)
class AttentionCall:
    """Hold what a layer asks for: rotated [tokens, heads, head_dim] rows, and how to attend."""

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    window: int | None
    soft_cap: float | None
    is_causal: bool
    additions: tuple[str, ...]
    """Names of tensors that the layer wants to take part in attention: masks, biases, sinks."""


Handler = Callable[[AttentionCall], torch.Tensor]
"""Answer a call with [tokens, heads, head_dim]."""

_handler: ContextVar[Handler] = ContextVar("attention_handler")


@contextmanager
def attention_handled_by(handler: Handler) -> Iterator[None]:
    """Let the handler answer every attention call of a model that runs inside."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


def register() -> None:
    """Make `attn_implementation=NAME` known to transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Answer in the interface's shapes: rows come as [1, heads, tokens, head_dim] and leave as [1, tokens, ...]."""
    tensors = [name for name, value in options.items() if isinstance(value, torch.Tensor) and name not in PASSED_ALONG]
    is_causal = options.get("is_causal")
    call = AttentionCall(
        module=module,
        query=query[0].transpose(0, 1).contiguous(),
        key=key[0].transpose(0, 1).contiguous(),
        value=value[0].transpose(0, 1).contiguous(),
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=options.get("sliding_window"),
        soft_cap=options.get("softcap"),
        is_causal=bool(getattr(module, "is_causal", True) if is_causal is None else is_causal),
        additions=(*(["attention_mask"] if attention_mask is not None else []), *tensors),
    )
    return _handler.get()(call)[None], None
