"""Which architectures run natively."""

from typing import Any

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.models.llama import LlamaModel
from pagefleet.engine.weights import Checkpoint

NATIVE_MODELS = {"LlamaForCausalLM": LlamaModel}


def architecture_of(config: Any) -> str:
    """Return the architecture's name, refusing those that the engine has no code for; raises StartupError."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    # A GGUF file names only the model type.
    name = next(iter(getattr(config, "architectures", None) or []), None) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(
        config.model_type, f"of type {config.model_type!r}"
    )
    if name not in NATIVE_MODELS:
        raise StartupError(f"architecture {name} is not supported; supported are {', '.join(NATIVE_MODELS)}")
    return str(name)


def load_model(config: Any, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> LlamaModel:
    """Build the model and load its weights; raises StartupError."""
    return NATIVE_MODELS[architecture_of(config)](config, checkpoint, dtype=dtype, device=device)
