"""Which code computes an architecture: ours, or transformers' over our attention."""

from collections.abc import Callable
from typing import Any

import torch

from pagefleet.engine.checkpoint_format import METHODS, packed_format
from pagefleet.engine.errors import StartupError
from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.models.decoder import DecoderModel, PrepareLinear
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.gemma import describe_gemma2, describe_gemma3
from pagefleet.engine.models.interface import Model
from pagefleet.engine.models.llama import describe_llama, describe_mistral, describe_qwen2, describe_qwen3
from pagefleet.engine.models.phi3 import describe_phi3
from pagefleet.engine.models.transformers_model import TransformersModel
from pagefleet.engine.weights import open_checkpoint

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
    """Return the architecture's name; a GGUF file names only the type, whose causal language model it then is."""
    names = getattr(config, "architectures", None)
    if names:
        return str(names[0])
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, f"of type {config.model_type!r}"))


def load_model(
    config: Any,
    source: ModelSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    model_impl: str = "auto",
    prepare: PrepareLinear | None = None,
) -> Model:
    """Build the model and load its weights; raises StartupError.

    `model_impl` is `native`, `transformers`, or `auto`: native code where there is some, whose linears `prepare` gets
    layer by layer.
    """
    architecture = architecture_of(config)
    describe = NATIVE_MODELS.get(architecture)
    if describe is not None and model_impl != "transformers":
        packed = packed_format(getattr(config, "quantization_config", None)) if source.gguf_file is None else None
        return DecoderModel(
            describe(config), open_checkpoint(source), dtype=dtype, device=device, packed=packed, prepare=prepare
        )
    if model_impl == "native":
        raise StartupError(
            f"--model-impl native: there is no native code for architecture {architecture}; use --model-impl "
            f"transformers, or one of {', '.join(NATIVE_MODELS)}"
        )
    stored = getattr(config, "quantization_config", None)
    if source.gguf_file is None and isinstance(stored, dict) and stored.get("quant_method") in METHODS:
        raise StartupError(
            f"--model-impl transformers: checkpoints quantized with {stored['quant_method']} are read for "
            f"{', '.join(NATIVE_MODELS)}; use --model-impl auto with one of these, or a plain checkpoint"
        )
    return TransformersModel(architecture, config, source, dtype=dtype, device=device)
