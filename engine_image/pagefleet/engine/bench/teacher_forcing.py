"""Known tokens through the engine's own scheduler, blocks, runner and model: the logits of every position."""

from collections.abc import Iterator, Sequence

import torch

from pagefleet.engine.bench.replaced import replaced
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import StartupError
from pagefleet.engine.messages import AddRequest
from pagefleet.engine.models.interface import Model
from pagefleet.engine.sampling_params import SamplingParameters


def model_of(core: EngineCore) -> Model:
    """Return the model that a core computes."""
    return core._runner._model


def teacher_forced_rows(core: EngineCore, token_ids: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield, in order, the rows that predict all tokens but the first.

    Each item is a few rows: [rows, hidden] states and their float32 [rows, vocabulary] logits. Memory holds
    those of one step at most. Nobody else steps the core meanwhile.
    Raises RequestRefused when the tokens do not fit, StartupError when a state is not finite.
    """
    model = model_of(core)
    logits_of = model.logits
    pieces: list[tuple[torch.Tensor, torch.Tensor]] = []

    def kept(hidden: torch.Tensor) -> torch.Tensor:
        logits = logits_of(hidden)
        pieces.append((hidden, logits))
        return logits

    # Prompt scores are what makes the runner compute logits of every position.
    sampling = SamplingParameters(max_tokens=1, temperature=0.0, ignore_eos=True, prompt_logprobs=0)
    core.add_all([AddRequest(request_id="text", prompt_token_ids=list(token_ids), sampling=sampling)])
    rows_left = len(token_ids) - 1
    with replaced(model, "logits", kept):
        for step in core.steps():
            if any(output.finish_reason == "error" for output in step.outputs):
                raise StartupError("the model's states are not finite on this text; use --dtype float32")
            for hidden, logits in pieces:
                if rows_left > 0:  # the last row predicts what no text says
                    yield hidden, logits
                rows_left -= len(hidden)
            pieces.clear()
