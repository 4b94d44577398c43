"""Run a transformers model on a few tokens, to see what it asks of attention and where its body ends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pagefleet.engine.models.transformers_attention import AttentionCall, attention_handled_by


@dataclass(frozen=True)
class Observation:
    """Hold what one run showed."""

    calls: list[AttentionCall]
    """In the order of the layers."""
    attention_modules: list[str]
    """Name of the submodule of each call."""
    body: str
    """Name of the submodule that returns the hidden states which the head reads; empty if there is none."""
    output_type: type[Any]
    """What the body returns them in."""
    hidden: torch.Tensor | None
    """[tokens, hidden] states that the body returned."""
    widest_values_per_token: int
    """Numbers per token in the widest output of any module inside the body."""
    vocabulary_size: int
    """Width of the logits."""


class Prober:
    """Watch runs of one model in which every token attends to itself alone."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._sizes: dict[str, int] = {}
        self._body = ""
        self._hidden: torch.Tensor | None = None
        self._output_type: type[Any] = object
        self.calls: list[AttentionCall] = []

    def observe(self, token_ids: list[int], positions: list[int]) -> Observation:
        """Run the tokens as one packed row; raises whatever the model does."""
        self.calls = []
        device = self._model.device
        hooks = [module.register_forward_hook(self._hook(name)) for module, name in self._names.items() if name]
        try:
            with torch.inference_mode(), attention_handled_by(self._attend):
                output = self._model(
                    input_ids=torch.tensor([token_ids], device=device),
                    position_ids=torch.tensor([positions], device=device),
                    use_cache=False,
                )
        finally:
            for hook in hooks:
                hook.remove()
        inside = [size for name, size in self._sizes.items() if name.startswith(self._body + ".")]
        return Observation(
            calls=self.calls,
            attention_modules=[self._names[call.module] for call in self.calls],
            body=self._body,
            output_type=self._output_type,
            hidden=self._hidden,
            widest_values_per_token=max(inside, default=0) // len(token_ids),
            vocabulary_size=output.logits.shape[-1],
        )

    def _attend(self, call: AttentionCall) -> torch.Tensor:
        self.calls.append(call)
        groups = max(1, call.query.shape[1] // call.value.shape[1])
        return call.value.repeat_interleave(groups, dim=1)

    def _hook(self, name: str) -> Callable[..., None]:
        def look(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            hidden = getattr(output, "last_hidden_state", None)
            if hidden is not None:  # the last to return is the one that the model with the head called itself
                self._body, self._hidden, self._output_type = name, hidden[0], type(output)
            elif isinstance(output, torch.Tensor):
                self._sizes[name] = output.numel()

        return look
