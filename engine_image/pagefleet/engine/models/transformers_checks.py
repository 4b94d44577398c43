"""Which transformers models paged attention can serve; what cannot be served gets a sentence that names the part."""

from collections.abc import Iterator
from typing import Any

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.models.rotary_parameters import STATIC_ROPE_TYPES
from pagefleet.engine.models.transformers_probe import Observation, Prober

LAYER_TYPES = ("full_attention", "sliding_attention")
TOLERANCE = 0.05
"""Share of the largest number by which a row may differ in other company; other inputs differ by about all of it."""


def check_configuration(architecture: str, config: Any) -> None:
    """Refuse what the configuration tells already; raises StartupError."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(architecture, "it has an encoder, and this engine runs decoders alone")
    if config.get_text_config() is not config:
        raise _refusal(
            architecture,
            "it is a multimodal wrapper, and this engine reads text alone; save its language model by itself",
        )
    if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", None) == "alibi":
        raise _refusal(architecture, "its positions are biases on the scores (ALiBi)")
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in LAYER_TYPES:
            raise _refusal(architecture, f"it has layers of type {kind}, and paged are {' and '.join(LAYER_TYPES)}")
    for rope_type in _rope_types(getattr(config, "rope_parameters", None) or {}):
        if rope_type not in STATIC_ROPE_TYPES:
            raise _refusal(
                architecture,
                f"its rope type {rope_type} changes with the length of the sequence, which cached keys cannot follow",
            )
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _refusal(architecture, f"transformers has no causal language model of type {config.model_type!r}")


def check_class(architecture: str, model: Any) -> None:
    """Refuse what the model's class tells; raises StartupError."""
    if getattr(model, "_is_stateful", False):
        raise _refusal(architecture, "it keeps a state beside keys and values, as state spaces and convolutions do")


def check_observation(architecture: str, config: Any, seen: Observation) -> None:
    """Refuse what one run shows; raises StartupError."""
    missing = next(_missing_parts(config, seen), None)
    if missing is not None:
        raise _refusal(architecture, missing)


def check_independence(architecture: str, model: Any, vocabulary_size: int, context_length: int) -> None:
    """Refuse a model that looks at neighbouring rows outside attention, or at the order of rows instead of positions.

    Rows of a step belong to several sequences: what one computes must depend on its token and position alone. Raises
    StartupError.
    """
    last = min(9, context_length - 1)
    first, second, third, subject = (vocabulary_size // divisor for divisor in (7, 5, 3, 2))
    prober = Prober(model)
    # As many rows in both runs: with fewer, matrix products round otherwise, and experts may be chosen otherwise.
    at_the_end = prober.observe([first, second, subject], [min(4, last), 0, last])
    at_the_start = prober.observe([subject, third, first], [last, min(2, last), 0])
    for rows, others in zip(_results(at_the_end), _results(at_the_start), strict=True):
        row, expected = rows[-1].float(), others[0].float()
        if (row - expected).abs().max() > TOLERANCE * expected.abs().max():
            raise _refusal(
                architecture,
                "its tokens see each other outside attention, or their place in the batch instead of their position",
            )


def refuse_run(architecture: str, calls: int, error: Exception) -> StartupError:
    """Return the refusal of a model whose run failed."""
    if not calls:
        return _refusal(architecture, "its attention does not go through transformers' attention interface")
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return _refusal(architecture, f"it fails without transformers' own masks and cache ({text})")


def _missing_parts(config: Any, seen: Observation) -> Iterator[str]:
    calls, layers = seen.calls, config.num_hidden_layers
    if not calls:
        yield "its attention does not go through transformers' attention interface"
        return
    if len(calls) < layers:
        yield (
            f"{layers - len(calls)} of its {layers} layers do not attend but keep a state of another kind, as state "
            "spaces and convolutions do"
        )
    if len(calls) > layers or len({id(call.module) for call in calls}) != len(calls):
        yield f"its {layers} layers attend {len(calls)} times, and the cache has one place for each layer"
    additions = sorted({name for call in calls for name in call.additions})
    if additions:
        yield f"its attention takes {', '.join(additions)}, and paged attention adds nothing to the scores"
    if not all(call.is_causal for call in calls):
        yield "it attends in both directions"
    if any(call.key.shape != call.value.shape for call in calls):
        yield "its keys and values differ in size (multi-head latent attention)"
    if len({(call.query.shape, call.key.shape) for call in calls}) > 1:
        yield "its layers differ in their heads"
    if calls[0].query.shape[1] % calls[0].key.shape[1] or calls[0].query.shape[2] != calls[0].key.shape[2]:
        yield "its query heads do not divide over its key-value heads"
    if not seen.body:
        yield "its head is not apart from a body that returns hidden states"
    yield from _missing_windows(config, seen)
    if not isinstance(getattr(config, "max_position_embeddings", None), int):
        yield "its configuration names no longest sequence (max_position_embeddings)"


def _missing_windows(config: Any, seen: Observation) -> Iterator[str]:
    """Compare the windows that the configuration names with those that layers ask for."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    for index, call in enumerate(seen.calls):
        slides = window is not None if kinds is None else kinds[index] == "sliding_attention"
        if slides and call.window is None:
            yield f"layer {index} has a sliding window that it does not tell attention"


def _results(seen: Observation) -> Iterator[torch.Tensor]:
    for call in seen.calls:
        yield from (call.query, call.key, call.value)
    if seen.hidden is not None:
        yield seen.hidden


def _rope_types(parameters: dict[str, Any]) -> Iterator[str]:
    if "rope_type" in parameters:
        yield parameters["rope_type"]
    for value in parameters.values():
        if isinstance(value, dict):
            yield from _rope_types(value)


def _refusal(architecture: str, missing: str) -> StartupError:
    return StartupError(f"architecture {architecture} does not run on the transformers back end: {missing}")
