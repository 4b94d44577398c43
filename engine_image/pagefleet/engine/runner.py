"""Turn a scheduled step into tensors, run the model, sample."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from pagefleet.engine.beam_candidates import propose_continuations
from pagefleet.engine.decode_graphs import DecodeGraphs
from pagefleet.engine.kernels.interface import AttentionBatch, PagedAttention
from pagefleet.engine.models.interface import Model
from pagefleet.engine.sampler import sample
from pagefleet.engine.scheduled_step import ScheduledSequence, ScheduledStep
from pagefleet.engine.token_scores import SampledScores, score_prompt


class Runner:
    """Run steps on one device."""

    def __init__(
        self,
        model: Model,
        attention: PagedAttention,
        *,
        device: torch.device,
        eos_token_ids: frozenset[int],
        graphs: DecodeGraphs | None = None,
        plain_slots: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Keep the parts; `plain_slots` are those of the blocks of a packed cache, as they are at each step."""
        self._model = model
        self._plain_slots = plain_slots
        self._attention = attention
        self._device = device
        self._eos_token_ids = eos_token_ids
        self._graphs = graphs
        self._rows = StepRows()

    @torch.inference_mode()
    def execute(self, step: ScheduledStep, table_of: Callable[[str], list[int]]) -> dict[str, int | None]:
        """Compute the step and return the next token of each sequence that samples.

        A sequence that computed something not finite gets None, whether it samples or not. `table_of` gives a
        sequence's block table.
        """
        token_ids, batch = self._batch(step, table_of)
        hidden = self._forward(token_ids, batch)
        ends = np.cumsum(batch.query_lengths)
        for end, entry in zip(ends, step.entries, strict=True):
            score_prompt(entry, hidden, int(end) - entry.tokens, self._model.logits)
        last_rows = ends - 1
        sampling = [
            (int(row), sequence)
            for row, entry in zip(last_rows, step.entries, strict=True)
            if entry.samples
            for sequence in entry.sequences
        ]
        failed: dict[str, int | None] = dict.fromkeys(_failed(step, hidden, last_rows))
        if not sampling:
            return failed
        sequences = [sequence for _, sequence in sampling]
        logits = self._model.logits(self._rows_of(hidden, [row for row, _ in sampling]))
        scores = SampledScores(logits, sequences)
        propose_continuations(logits, sequences)
        tokens = sample(logits, sequences, self._eos_token_ids)
        scores.record(tokens)
        return {sequence.sequence_id: token for sequence, token in zip(sequences, tokens, strict=True)} | failed

    def _forward(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        if self._graphs is not None:
            hidden = self._graphs.forward(token_ids, batch)
            if hidden is not None:
                return hidden
        self._attention.begin_step(batch)
        return self._model.forward(token_ids, batch.positions, self._attention)

    def _rows_of(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        if rows == list(range(len(hidden))):
            return hidden  # decodes alone: a copy would cost more than the comparison
        return hidden[torch.tensor(rows, device=self._device)]

    def _batch(self, step: ScheduledStep, table_of: Callable[[str], list[int]]) -> tuple[torch.Tensor, AttentionBatch]:
        tables = [table_of(entry.sequence.sequence_id) for entry in step.entries]
        tokens = step.tokens
        plain_slots = self._plain_slots
        self._rows.fill(step.entries, tables, self._attention.shape.block_size, plain_slots)
        token_ids, positions, slots = self._rows.tensor[:, :tokens].to(self._device)
        return token_ids, AttentionBatch(
            positions=positions,
            slots=slots,
            query_lengths=[entry.tokens for entry in step.entries],
            context_lengths=[entry.first_position + entry.tokens for entry in step.entries],
            block_tables=tables,
            plain_slots=None if plain_slots is None else torch.from_numpy(plain_slots),
        )


def _failed(step: ScheduledStep, hidden: torch.Tensor, last_rows: np.ndarray) -> list[str]:
    """Name the sequences of chunks with a row that is not finite; a chunk's last row need not have seen it."""
    if len(last_rows) == len(hidden):
        return []  # decodes alone: the sampler looks at their logits
    is_finite = hidden.isfinite().all(-1).numpy(force=True)
    firsts = np.concatenate(([0], last_rows[:-1] + 1))
    finite_chunks = np.logical_and.reduceat(is_finite, firsts)
    return [
        sequence.sequence_id
        for entry, finite in zip(step.entries, finite_chunks, strict=True)
        if not finite
        for sequence in entry.sequences
    ]


class StepRows:
    """Hold what the model needs to know of each row of a step, in buffers that live as long as the engine.

    Decodes are filled by plain Python arithmetic, which for a single number costs a tenth of a call into numpy.
    """

    def __init__(self) -> None:
        self.tensor = torch.empty(3, 0, dtype=torch.int64)
        """[3, capacity]: token ids, positions, slots."""
        self._numbers = self.tensor.numpy()

    def fill(
        self,
        entries: list[ScheduledSequence],
        tables: list[list[int]],
        block_size: int,
        plain_slots: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Write the rows of all entries, one entry after another."""
        tokens = sum(entry.tokens for entry in entries)
        if tokens > self.tensor.shape[1]:
            self.tensor = torch.empty(3, 2 * tokens, dtype=torch.int64)
            self._numbers = self.tensor.numpy()
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for entry, table in zip(entries, tables, strict=True):
            first, end = entry.first_position, entry.first_position + entry.tokens
            if entry.tokens == 1:
                ids.append(entry.sequence.token_ids[first])
                positions.append(first)
                block = table[first // block_size]
                slots.append(
                    (block if plain_slots is None else int(plain_slots[block])) * block_size + first % block_size
                )
                continue
            ids += entry.sequence.token_ids[first:end]
            span = np.arange(first, end)
            positions += range(first, end)
            blocks = np.asarray(table)[span // block_size]
            homes = blocks if plain_slots is None else plain_slots[blocks].astype(np.int64)
            slots += (homes * block_size + span % block_size).tolist()
        for row, values in zip(self._numbers, (ids, positions, slots), strict=True):
            row[:tokens] = values
