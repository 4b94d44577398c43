"""Models that transformers computes and whose attention is ours: any whose attention goes through its interface."""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.interface import LayerAttention, PagedAttention
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.norm import RmsNorm, rms_norm
from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.models.transformers_attention import NAME, AttentionCall, attention_handled_by, register
from pagefleet.engine.models.transformers_checks import (
    check_class,
    check_configuration,
    check_independence,
    check_observation,
    refuse_run,
)
from pagefleet.engine.models.transformers_probe import Observation, Prober
from pagefleet.engine.weights import first_line, open_checkpoint


class TransformersModel:
    """Run transformers' modules over a paged cache; raises StartupError when a part is missing."""

    implementation = "transformers"
    packed_method: str | None = None

    def __init__(
        self, architecture: str, config: Any, source: ModelSource, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        check_configuration(architecture, config)
        register()
        self.rms_norm: RmsNorm = rms_norm  # not used: the modules bring their own
        seen = _observe_skeleton(architecture, config)
        self.context_length: int = config.max_position_embeddings
        self.vocabulary_size = seen.vocabulary_size
        self.query_heads, self.head_dim = seen.calls[0].query.shape[1:]
        self.kv_heads = seen.calls[0].key.shape[1]
        self.layer_attention = tuple(
            LayerAttention(scale=call.scale, window=call.window, soft_cap=call.soft_cap) for call in seen.calls
        )
        model = _load(config, source, dtype=dtype, device=device)
        check_independence(architecture, model, self.vocabulary_size, self.context_length)
        self._device = device
        self._layers = _layers_of(model, seen)
        self._body = model.get_submodule(seen.body)
        self._given = _GivenStates(seen.output_type)
        self._head = _with_replaced(model, seen.body.split("."), self._given)
        self.weight_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
        qkv = (self.query_heads + 2 * self.kv_heads) * self.head_dim
        self.activation_values_per_token = 4 * seen.widest_values_per_token + 3 * qkv

    def forward_widest(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention
    ) -> torch.Tensor:
        """Compute everything: which of the modules is the widest is not known."""
        return self.forward(token_ids, positions, attention)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """Yield none: they belong to transformers' modules."""
        return iter(())

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        """Map [tokens] ids at [tokens] positions to [tokens, hidden] states: one packed row, no mask, no cache."""

        def attend(call: AttentionCall) -> torch.Tensor:
            layer = self._layers[call.module]
            attention.store(layer, call.key, call.value)
            return attention.attend(layer, call.query)

        with attention_handled_by(attend):
            output = self._body(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [rows, hidden] states to float32 [rows, vocabulary], with all that the model does behind its body."""
        self._given.hidden = hidden[None]
        ids = torch.zeros((1, hidden.shape[0]), dtype=torch.int64, device=self._device)
        logits: torch.Tensor = self._head(input_ids=ids, use_cache=False).logits[0]
        return logits.float()


class _GivenStates(torch.nn.Module):
    """Stand in for a model's body: return states that were computed before, so that the head alone runs."""

    hidden: torch.Tensor

    def __init__(self, output_type: type[Any]) -> None:
        super().__init__()
        self._output_type = output_type

    def forward(self, *_inputs: object, **_options: object) -> Any:
        return self._output_type(last_hidden_state=self.hidden)


def _observe_skeleton(architecture: str, config: Any) -> Observation:
    """Run the model without weights, on torch's meta device, before anything is loaded; raises StartupError."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            # bfloat16, as grouped matrix products of experts have no other shape function
            model = AutoModelForCausalLM.from_config(
                copy.deepcopy(config), attn_implementation=NAME, dtype=torch.bfloat16
            )
    except KeyError as error:
        raise (refuse_run(architecture, 0, error) if error.args == (NAME,) else error) from error
    except Exception as error:  # transformers raises whatever its models do
        raise StartupError(f"architecture {architecture} cannot be built: {first_line(error)}") from error
    check_class(architecture, model)
    prober = Prober(model.eval())
    try:
        seen = prober.observe([0, 0, 0], [0, 1, 0])
    except Exception as error:
        raise refuse_run(architecture, len(prober.calls), error) from error
    check_observation(architecture, config, seen)
    return seen


def _load(config: Any, source: ModelSource, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Load the weights; raises StartupError when one is missing or of another shape."""
    from transformers import AutoModelForCausalLM

    if source.gguf_file is not None:
        raise StartupError(
            f"file {source.path}: the transformers back end reads safetensors and no GGUF file this large"
        )
    open_checkpoint(source)  # says what is wrong with the folder better than transformers does
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source.folder,
            config=config,
            dtype=dtype,
            attn_implementation=NAME,
            device_map=None if device.type == "cpu" else device,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:
        raise StartupError(f"the weights in {source.folder} cannot be loaded: {first_line(error)}") from error
    for name in sorted(report["missing_keys"]):
        raise StartupError(f"weight {name} is missing in {source.folder}: the files do not fit config.json")
    return model.eval().requires_grad_(False)


def _layers_of(model: torch.nn.Module, seen: Observation) -> dict[torch.nn.Module, int]:
    """Return the layer that each attention module of the model is, by the modules' names in the skeleton."""
    return {model.get_submodule(name): layer for layer, name in enumerate(seen.attention_modules)}


def _with_replaced(module: torch.nn.Module, path: list[str], replacement: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of the module that shares all weights and has another submodule at the path."""
    twin = copy.copy(module)
    name, *rest = path
    child = replacement if not rest else _with_replaced(module.get_submodule(name), rest, replacement)
    twin._modules = {**module._modules, name: child}
    return twin
