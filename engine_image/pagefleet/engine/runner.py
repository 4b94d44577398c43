"""Turn a scheduled step into tensors, run the model, sample."""

from collections.abc import Callable

import numpy as np
import torch

from pagefleet.engine.kernels.interface import AttentionBatch, PagedAttention
from pagefleet.engine.models.llama import LlamaModel
from pagefleet.engine.sampler import sample
from pagefleet.engine.scheduler import ScheduledStep
from pagefleet.engine.token_scores import SampledScores, score_prompt


class Runner:
    """Run steps on one device."""

    def __init__(
        self,
        model: LlamaModel,
        attention: PagedAttention,
        *,
        device: torch.device,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._model = model
        self._attention = attention
        self._device = device
        self._eos_token_ids = eos_token_ids

    @torch.inference_mode()
    def execute(self, step: ScheduledStep, table_of: Callable[[str], list[int]]) -> dict[str, int | None]:
        """Compute the step and return the next token of each sequence that samples; None if its logits are not finite.

        `table_of` gives a request's block table.
        """
        token_ids, batch = self._batch(step, table_of)
        self._attention.begin_step(batch)
        hidden = self._model.forward(token_ids, batch.positions, self._attention)
        ends = np.cumsum(batch.query_lengths)
        for end, entry in zip(ends, step.entries, strict=True):
            score_prompt(entry, hidden[int(end) - entry.tokens : int(end)], self._model.logits)
        last_rows = ends - 1
        sampling = [
            (int(row), entry.sequence) for row, entry in zip(last_rows, step.entries, strict=True) if entry.samples
        ]
        if not sampling:
            return {}
        rows = torch.tensor([row for row, _ in sampling], device=self._device)
        sequences = [sequence for _, sequence in sampling]
        logits = self._model.logits(hidden[rows])
        scores = SampledScores(logits, sequences)
        tokens = sample(logits, sequences, self._eos_token_ids)
        scores.record(tokens)
        return {sequence.request_id: token for sequence, token in zip(sequences, tokens, strict=True)}

    def _batch(self, step: ScheduledStep, table_of: Callable[[str], list[int]]) -> tuple[torch.Tensor, AttentionBatch]:
        block_size = self._attention.shape.block_size
        ids, positions, slots = [], [], []
        tables = []
        for entry in step.entries:
            first, end = entry.first_position, entry.first_position + entry.tokens
            table = table_of(entry.sequence.request_id)
            position = np.arange(first, end)
            ids.append(np.asarray(entry.sequence.token_ids[first:end]))
            positions.append(position)
            slots.append(np.asarray(table)[position // block_size] * block_size + position % block_size)
            tables.append(table)
        return self._tensor(ids), AttentionBatch(
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            query_lengths=[entry.tokens for entry in step.entries],
            context_lengths=[entry.first_position + entry.tokens for entry in step.entries],
            block_tables=tables,
        )

    def _tensor(self, parts: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(self._device)
