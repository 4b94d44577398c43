"""Rotary embeddings from configurations, by transformers' own rules."""

from collections.abc import Callable
from typing import Any

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.layers.rotary import RotaryEmbedding

STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
"""Rotations that do not change with the length of the sequence, so that cached keys stay right."""

SHORT_FORM_ROPE_TYPE = "longrope"
"""Changes once, at a length that the configuration names: up to there it is static (arXiv 2402.13753)."""


def rotary_embedding(
    config: Any, head_dim: int, *, rotary_dim: int | None = None, layer_type: str | None = None
) -> RotaryEmbedding:
    """Return the rotation of a model, or of its layers of one type where `rope_parameters` has one entry for each.

    `rotary_dim` is how much of a head is rotated, by default all. Raises StartupError for rotations that depend on the
    length of the sequence.
    """
    # Not through the model's own class: importing its module takes a second of every start.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = _parameters(config, layer_type)
    rope_type = parameters.get("rope_type", "default")
    rotary_dim = rotary_dim or head_dim
    if rope_type not in (*STATIC_ROPE_TYPES, SHORT_FORM_ROPE_TYPE):
        raise StartupError(
            f"rope type {rope_type} changes with the length of the sequence, which cached keys cannot follow; "
            f"supported are {', '.join((*STATIC_ROPE_TYPES, SHORT_FORM_ROPE_TYPE))}"
        )
    if rope_type == "default":
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        frequencies, scale = 1.0 / parameters["rope_theta"] ** exponents, 1.0
    else:
        initialise: Callable[..., Any] = ROPE_INIT_FUNCTIONS[rope_type]
        options = {} if layer_type is None else {"layer_type": layer_type}
        frequencies, scale = initialise(config, torch.device("cpu"), **options)
    unrotated = head_dim // 2 - len(frequencies)
    return RotaryEmbedding(
        inverse_frequencies=torch.cat((frequencies.float(), torch.zeros(unrotated))),
        scale=torch.cat((torch.full((len(frequencies),), float(scale)), torch.ones(unrotated))),
    )


def static_context_length(config: Any) -> int:
    """Return the longest sequence over which the rotation stays the same."""
    length: int = config.max_position_embeddings
    parameters = _parameters(config, None)
    if parameters.get("rope_type") == SHORT_FORM_ROPE_TYPE:
        return min(length, int(parameters["original_max_position_embeddings"]))
    return length


def _parameters(config: Any, layer_type: str | None) -> dict[str, Any]:
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return parameters if layer_type is None else parameters[layer_type]
