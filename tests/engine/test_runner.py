"""The rows of a step, in buffers that are used again and again."""

import torch

from pagefleet.engine.runner import StepRows
from pagefleet.engine.scheduled_step import ScheduledSequence
from tests.support.sequences import make_sequence


def test_rows_of_chunks_and_decodes() -> None:
    chunk, decode = make_sequence("chunk", prompt=9), make_sequence("decode", prompt=6)
    entries = [ScheduledSequence(chunk, 2, 5), ScheduledSequence(decode, 5, 1)]
    rows = StepRows()
    rows.fill(entries, [[7, 3], [0, 4]], 4)
    ids, positions, slots = rows.tensor[:, :6].tolist()
    assert ids == chunk.token_ids[2:7] + decode.token_ids[5:6]
    assert positions == [2, 3, 4, 5, 6, 5]
    assert slots == [30, 31, 12, 13, 14, 17]


def test_the_buffer_stays_where_it_is() -> None:
    sequence = make_sequence("s", prompt=9)
    rows = StepRows()
    rows.fill([ScheduledSequence(sequence, 0, 8)], [[0, 1]], 4)
    address = rows.tensor.data_ptr()
    rows.fill([ScheduledSequence(sequence, 8, 1)], [[0, 1, 2]], 4)
    assert rows.tensor.data_ptr() == address
    assert torch.equal(rows.tensor[1:, 0], torch.tensor([8, 8]))
