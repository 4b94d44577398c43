"""The quality gate on a trained model: what rounding its weights and KV cache may change."""

from pathlib import Path

import pytest

from pagefleet.engine.bench.quality import Choice, QualityOptions, run_quality
from pagefleet.engine.bench.quality_text import SHIPPED_TEXT
from pagefleet.engine.config import EngineConfig
from tests.support.models import smollm2

HEAD_KEPT = Choice(weights="int8", ignored=("lm_head",))
"""The default recipe."""
DOWN_KEPT = Choice(weights="int8", ignored=("lm_head", "down_proj"))


@pytest.mark.real_model
def test_int8_weights_of_smollm2(tmp_path: Path) -> None:
    """Prose and code, a part of the shipped text that code is much of: on all of it KL is 0.0157 and 0.0095."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(SHIPPED_TEXT.read_text().split("\n\n")[3:-5]))
    options = QualityOptions(
        engine=EngineConfig(model=smollm2(), device="cpu", threads=1),
        choices=[HEAD_KEPT, DOWN_KEPT],
        text=text,
        window_tokens=400,
        max_kl=0.02,
        min_agreement=0.9,
        json_path=tmp_path / "quality.json",
    )
    report = run_quality(options, print)
    assert isinstance(report["positions"], int)
    assert report["positions"] >= 1000
    choices = report["choices"]
    assert isinstance(choices, list)
    head_kept, down_kept = choices
    assert down_kept["kl_nats"] <= 0.0125 < head_kept["kl_nats"], "parts that are kept matter"


@pytest.mark.real_model
def test_int4_weights_of_smollm2(tmp_path: Path) -> None:
    """A second rounding of weights that were 4-bit in other groups: KL is 0.33 on all of the text."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(SHIPPED_TEXT.read_text().split("\n\n")[3:-5]))
    options = QualityOptions(
        engine=EngineConfig(model=smollm2(), device="cpu", threads=1),
        choices=[Choice(weights="int4", ignored=("lm_head",))],
        text=text,
        window_tokens=400,
        max_kl=0.45,
        min_agreement=0.6,
        json_path=tmp_path / "quality.json",
    )
    run_quality(options, print)
