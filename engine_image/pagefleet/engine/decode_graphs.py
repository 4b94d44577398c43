"""Replay decode steps that were captured at the start: one CUDA graph for each of a few batch sizes.

A decode of a few sequences launches hundreds of kernels that are shorter than their launch; a graph launches them all
at once, at the same addresses. What changes between steps is copied into buffers that stay; a step of a size between
two is padded with rows that read and write no cache.
"""

import bisect
import logging
from collections.abc import Callable
from functools import partial

import torch

from pagefleet.engine.kernels.interface import AttentionBatch, PagedAttention
from pagefleet.engine.kernels.triton.attention import TritonAttention
from pagefleet.engine.models.interface import Model

logger = logging.getLogger(__name__)

Run = Callable[[], torch.Tensor]
"""Computes over fixed buffers and returns a tensor that stays where it is."""

Capture = Callable[[Run], Run]


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Return the batch sizes to capture: powers of two, and the largest batch."""
    return [*(2**power for power in range((max_num_seqs - 1).bit_length())), max_num_seqs]


def size_for(query_lengths: list[int], sizes: list[int]) -> int | None:
    """Return the size to pad a step to, or None when it is no captured one: a longer chunk, or too many sequences."""
    if any(length != 1 for length in query_lengths):
        return None
    place = bisect.bisect_left(sizes, len(query_lengths))
    return sizes[place] if place < len(sizes) else None


class DecodeGraphs:
    """Hold a model's captured decode steps and the buffers that they read."""

    def __init__(
        self, model: Model, attention: TritonAttention, *, sizes: list[int], max_model_len: int, max_rows: int
    ) -> None:
        """Make the buffers; `max_rows` is the most tokens of any step, whether captured or not."""
        self._model = model
        self._attention = attention
        self._max_model_len = max_model_len
        self._sizes = sizes
        self._inputs = torch.zeros(2, sizes[-1], dtype=torch.int64, device=attention.shape.device)
        """[token ids and positions, sequences]."""
        attention.reserve(sequences=sizes[-1], rows=max(max_rows, sizes[-1]), longest_context=max_model_len)
        self._addresses = attention.buffer_addresses
        self._replays: dict[int, Run] = {}

    def capture(self, capture: Capture) -> None:
        """Capture all sizes; when the device or the model refuses, none is replayed and a sentence is logged."""
        nobody = torch.empty(0, dtype=torch.int64, device=self._inputs.device)
        empty = AttentionBatch(positions=nobody, slots=nobody, query_lengths=[], context_lengths=[], block_tables=[])
        try:
            for size in reversed(self._sizes):  # smaller steps fit into the memory of larger ones
                self._attention.begin_decodes(empty, rows=size, longest_context=self._max_model_len)
                token_ids, positions = self._inputs[:, :size]
                self._replays[size] = capture(partial(self._run, token_ids, positions))
        except RuntimeError as error:
            self._replays.clear()
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            logger.warning("decodes run without CUDA graphs, slower in small batches: %s", reason)

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch) -> torch.Tensor | None:
        """Return the [tokens, hidden] states of a step, valid until the next, or None when no graph can serve it."""
        size = size_for(batch.query_lengths, self._sizes)
        if size not in self._replays:
            return None
        self._attention.begin_decodes(batch, rows=size, longest_context=self._max_model_len)
        if self._attention.buffer_addresses != self._addresses:
            self._replays.clear()
            logger.warning("decodes run without CUDA graphs from here on: a step was larger than all that were planned")
            return None
        sequences = len(token_ids)
        self._inputs[0, :sequences].copy_(token_ids)
        self._inputs[1, :sequences].copy_(batch.positions)
        self._inputs[:, sequences:size].zero_()
        return self._replays[size]()[:sequences]

    def _run(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._model.forward(token_ids, positions, self._attention)


def capture_decodes(
    model: Model, attention: PagedAttention, *, max_num_seqs: int, max_model_len: int, max_rows: int
) -> DecodeGraphs | None:
    """Capture the model's decode steps where device and back end can; the cache must have been allocated."""
    if not isinstance(attention, TritonAttention) or attention.shape.device.type != "cuda":
        return None
    graphs = DecodeGraphs(
        model, attention, sizes=graph_sizes(max_num_seqs), max_model_len=max_model_len, max_rows=max_rows
    )
    with torch.inference_mode():
        graphs.capture(CudaCapture())
    return graphs


class CudaCapture:
    """Capture runs into CUDA graphs that share their memory, since only one is replayed at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Return the replay of a run; raises RuntimeError where something in it cannot be captured."""
        run()  # compiles the kernels, which nothing may do during a capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay
