"""The quality gate on a trained model: what rounding its weights and KV cache may change."""

from pathlib import Path

import pytest

from pagefleet.engine.bench.quality import Choice, QualityOptions, run_quality
from pagefleet.engine.bench.quality_text import SHIPPED_TEXT
from pagefleet.engine.config import EngineConfig
from tests.support.models import smollm2

INT8 = Choice(weights="int8", ignored=("lm_head",))
"""The default recipe."""


@pytest.mark.real_model
def test_int8_weights_of_smollm2(tmp_path: Path) -> None:
    """An eighth of the positions would do for the mean; prose and code must both be there."""
    paragraphs = SHIPPED_TEXT.read_text().split("\n\n")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(paragraphs[3:-5]))
    engine = EngineConfig(model=smollm2(), device="cpu", threads=1)
    options = QualityOptions(
        engine=engine, choices=[INT8], text=text, window_tokens=400, max_kl=0.03, min_agreement=0.9
    )
    report = run_quality(options, lambda _: None)
    assert isinstance(report["positions"], int)
    assert report["positions"] >= 1000
