"""Run a transformers model layer by layer, so that each sees the outputs of those that are rounded already."""

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from pagefleet.engine.errors import StartupError


class _Reached(Exception):
    """Stop a forward pass at the first layer."""


def layers_of(model: Any) -> nn.ModuleList:
    """Return the decoder's layers; raises StartupError."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise StartupError(f"{type(model).__name__} keeps no list of decoder layers, so it cannot be quantized here")
    return layers


class LayerRunner:
    """Hold the hidden states before one layer, for all windows, and what each layer is called with beside them."""

    def __init__(self, model: Any, windows: torch.Tensor) -> None:
        self._layers = layers_of(model)
        self._arguments: list[dict[str, Any]] = []
        self._states: list[torch.Tensor] = []
        self._observe(model, windows)

    def run(self, index: int) -> None:
        """Call a layer for what its linears see; the states stay those before it."""
        for states in self._states:
            self._call(index, states)

    def advance(self, index: int) -> None:
        """Replace the states by the layer's outputs."""
        for place, states in enumerate(self._states):
            self._states[place] = self._call(index, states)

    def _call(self, index: int, states: torch.Tensor) -> torch.Tensor:
        output = self._layers[index](states, **self._arguments[index])
        result: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return result

    def _observe(self, model: Any, windows: torch.Tensor) -> None:
        """See each layer's arguments in one whole pass, which all windows share, and every window's first states."""

        def keep(_: nn.Module, __: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._arguments.append({name: value for name, value in named.items() if name != "hidden_states"})

        handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in self._layers]
        model(input_ids=windows[:1], use_cache=False)
        for handle in handles:
            handle.remove()

        def stop(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._states.append(arguments[0] if arguments else named["hidden_states"])
            raise _Reached

        handle = self._layers[0].register_forward_pre_hook(stop, with_kwargs=True)
        for window in windows:
            with suppress(_Reached):
                model(input_ids=window[None], use_cache=False)
        handle.remove()
