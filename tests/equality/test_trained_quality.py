"""The quality gate on a trained model: what rounding its weights and its KV cache may change."""

from pathlib import Path

import pytest

from pagefleet.engine.bench.quality import Choice, QualityOptions, run_quality
from pagefleet.engine.bench.quality_text import SHIPPED_TEXT
from pagefleet.engine.config import EngineConfig
from tests.support.models import smollm2

MOST_KL_NATS = {
    Choice(weights="int8", ignored=("lm_head",)): 0.01,  # the default recipe
    Choice(weights="int8", ignored=("lm_head", "down_proj")): 0.008,
    # Weights that were rounded to 4 bits in other groups before: a second rounding.
    Choice(weights="int4", ignored=("lm_head",)): 0.45,
    Choice(weights="none", kv_cache_dtype="int8"): 0.002,
    Choice(weights="none", kv_cache_dtype="int4"): 0.03,
    Choice(weights="none", kv_cache_dtype="k4v3"): 0.05,
}


@pytest.mark.real_model
@pytest.mark.timeout(600)
def test_roundings_of_smollm2(tmp_path: Path) -> None:
    """Prose and code, a part of the shipped text that code is much of."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(SHIPPED_TEXT.read_text().split("\n\n")[3:-5]))
    options = QualityOptions(
        engine=EngineConfig(model=smollm2(), device="cpu", threads=1),
        choices=list(MOST_KL_NATS),
        text=text,
        json_path=tmp_path / "quality.json",
    )
    report = run_quality(options, print)
    assert isinstance(report["positions"], int)
    assert report["positions"] >= 1000
    rows = report["choices"]
    assert isinstance(rows, list)
    found = dict(zip(MOST_KL_NATS, (row["kl_nats"] for row in rows), strict=True))
    assert {choice: kl for choice, kl in found.items() if kl > MOST_KL_NATS[choice]} == {}
    head_kept, down_kept, *_, kv_int8, kv_int4, kv_k4v3 = found.values()
    assert down_kept < head_kept, "parts that are kept matter"
    assert 0 < kv_int8 < kv_int4 < kv_k4v3, "fewer bits lose more"
