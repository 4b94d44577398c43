"""Which architectures run natively."""

from collections.abc import Callable
from typing import Any

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.models.decoder import DecoderModel
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.gemma import describe_gemma2, describe_gemma3
from pagefleet.engine.models.interface import Model
from pagefleet.engine.models.llama import describe_llama, describe_mistral, describe_qwen2, describe_qwen3
from pagefleet.engine.models.phi3 import describe_phi3
from pagefleet.engine.weights import Checkpoint

NATIVE_MODELS: dict[str, Callable[[Any], DecoderDescription]] = {
    "LlamaForCausalLM": describe_llama,
    "MistralForCausalLM": describe_mistral,
    "Qwen2ForCausalLM": describe_qwen2,
    "Qwen3ForCausalLM": describe_qwen3,
    "Gemma2ForCausalLM": describe_gemma2,
    "Gemma3ForCausalLM": describe_gemma3,
    "Phi3ForCausalLM": describe_phi3,
}


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


def load_model(config: Any, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
    """Build the model and load its weights; raises StartupError."""
    description = NATIVE_MODELS[architecture_of(config)](config)
    return DecoderModel(description, checkpoint, dtype=dtype, device=device)
