"""The widest step: its rows, and that the pass computes them where a context is shorter than the step."""

from pathlib import Path

import pytest
import torch

from pagefleet.capacity.engine_profile import CAPPED_TILE_TOKENS
from pagefleet.engine.activation_peak import batch_of, widest_step
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.kernels.gather import QUERY_TILE_TOKENS
from pagefleet.engine.llm import LLM
from tests.support.tiny_families import family_config
from tests.support.tiny_models import save_random_model


@pytest.mark.parametrize(
    ("budget", "sequences", "context", "lengths"),
    [
        (8, 3, 100, [6, 1, 1]),
        (3, 3, 100, [1, 1, 1]),
        (8, 3, 4, [4, 3, 1]),
        (20, 3, 4, [4, 4, 4]),
    ],
)
def test_all_rows_of_a_step_are_given_out(budget: int, sequences: int, context: int, lengths: list[int]) -> None:
    assert widest_step(budget, sequences, context) == lengths


def test_prompts_have_blocks_of_their_own() -> None:
    batch = batch_of([5, 3, 1, 1], 4, torch.device("cpu"))
    assert batch.block_tables == [[0, 1], [2], [3], [3]]
    assert batch.slots.tolist() == [0, 1, 2, 3, 4, 8, 9, 10, 12, 12]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 0]


def test_a_soft_capped_model_is_measured_on_either_back_end(tmp_path: Path) -> None:
    folder = save_random_model(family_config("gemma2"), tmp_path / "model")
    for backend in ("gather", "c"):
        memory = LLM(EngineConfig(model=str(folder), attention_backend=backend, threads=1, max_num_seqs=4)).core.info
        assert memory.memory is not None
        assert memory.memory.predicted is not None
    assert CAPPED_TILE_TOKENS == QUERY_TILE_TOKENS
