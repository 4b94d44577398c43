"""transformers' `generate` as a contestant: static batches of padded prompts, or one request at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pagefleet.engine.bench.measured_run import Contestant, MeasuredRun, Meter, OnTokens
from pagefleet.engine.bench.workload import BenchRequest

PAD_TOKEN = 0


def load_transformers(folder: Path, dtype: torch.dtype) -> Any:
    """Load a folder's model for `generate`, with no token that ends a sequence."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD_TOKEN
    return model


def load_transformers_tokenizer(folder: Path) -> Any:
    """Load a folder's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


class TransformersEngine(Contestant):
    """Run requests in batches of a fixed size, in order; a batch runs as long as its longest output.

    With a tokenizer the outputs become text all together, at the end.
    """

    def __init__(self, model: Any, *, name: str, batch_size: int, tokenizer: Any | None = None) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._name = name
        self.batch_size = batch_size

    @property
    def name(self) -> str:
        """Name the contestant."""
        return self._name

    @property
    def text(self) -> str:
        """Say when tokens become text."""
        return "none" if self._tokenizer is None else "at the end"

    def run(self, requests: Sequence[BenchRequest], on_tokens: OnTokens) -> MeasuredRun:
        """Run all requests; tokens beyond what a request asked for are dropped and not counted."""
        outputs: list[list[int]] = []
        texts: list[str] = []
        with Meter() as meter:
            for first in range(0, len(requests), self.batch_size):
                batch = requests[first : first + self.batch_size]
                outputs += self._generate(batch)
                on_tokens(sum(request.output_tokens for request in batch))
            if self._tokenizer is not None:
                texts = self._tokenizer.batch_decode(outputs, skip_special_tokens=True)
        return MeasuredRun(
            outputs=outputs,
            wall_s=meter.wall_s,
            own_cpu_s=meter.own_cpu_s,
            other_busy_cores=meter.other_busy_cores,
            texts=texts,
        )

    @torch.inference_mode()
    def _generate(self, batch: Sequence[BenchRequest]) -> list[list[int]]:
        longest = max(len(request.prompt_token_ids) for request in batch)
        token_ids = torch.full((len(batch), longest), PAD_TOKEN)
        mask = torch.zeros_like(token_ids)
        for row, request in enumerate(batch):  # padded on the left, so that all outputs begin at one column
            token_ids[row, longest - len(request.prompt_token_ids) :] = torch.tensor(request.prompt_token_ids)
            mask[row, longest - len(request.prompt_token_ids) :] = 1
        generated = self._model.generate(
            token_ids,
            attention_mask=mask,
            max_new_tokens=max(request.output_tokens for request in batch),
            do_sample=False,
        )
        return [
            row[longest : longest + request.output_tokens].tolist()
            for row, request in zip(generated, batch, strict=True)
        ]
