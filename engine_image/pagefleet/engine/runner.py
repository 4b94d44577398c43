"""Turn a scheduled step into tensors, run the model, sample."""

from collections.abc import Callable

import numpy as np
import torch

from pagefleet.engine.kernels.interface import AttentionBatch, PagedAttention
from pagefleet.engine.models.llama import LlamaModel
from pagefleet.engine.sampler import sample
from pagefleet.engine.scheduled_step import ScheduledStep


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
        """Compute the step and return the next token of each sequence that samples.

        A sequence that computed something not finite gets None, whether it samples or not. `table_of` gives a
        sequence's block table.
        """
        token_ids, batch = self._batch(step, table_of)
        self._attention.begin_step(batch)
        hidden = self._model.forward(token_ids, batch.positions, self._attention)
        last_rows = np.cumsum(batch.query_lengths) - 1
        sampling = [
            (int(row), sequence)
            for row, entry in zip(last_rows, step.entries, strict=True)
            if entry.samples
            for sequence in entry.sequences
        ]
        failed: dict[str, int | None] = dict.fromkeys(self._failed_chunks(step, hidden, last_rows))
        if not sampling:
            return failed
        rows = torch.tensor([row for row, _ in sampling], device=self._device)
        sequences = [sequence for _, sequence in sampling]
        tokens = sample(self._model.logits(hidden[rows]), sequences, self._eos_token_ids)
        return failed | {sequence.sequence_id: token for sequence, token in zip(sequences, tokens, strict=True)}

    def _failed_chunks(self, step: ScheduledStep, hidden: torch.Tensor, last_rows: np.ndarray) -> list[str]:
        """Name the sequences that do not sample and whose chunk is not finite.

        Each row attends to all before it, so what is not finite anywhere reaches the chunk's last one.
        """
        chunks = [
            (int(row), entry.sequence.sequence_id)
            for row, entry in zip(last_rows, step.entries, strict=True)
            if not entry.samples
        ]
        if not chunks:
            return []
        is_finite = hidden[[row for row, _ in chunks]].isfinite().all(-1).tolist()
        return [name for (_, name), finite in zip(chunks, is_finite, strict=True) if not finite]

    def _batch(self, step: ScheduledStep, table_of: Callable[[str], list[int]]) -> tuple[torch.Tensor, AttentionBatch]:
        block_size = self._attention.shape.block_size
        ids, positions, slots = [], [], []
        tables = []
        for entry in step.entries:
            first, end = entry.first_position, entry.first_position + entry.tokens
            table = table_of(entry.sequence.sequence_id)
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
