"""Read what `pagefleet bench quality --json` wrote, for a plan or for a manifest."""

import json
from pathlib import Path
from typing import Any

from pagefleet.capacity import QualityGate, QualityResult
from pagefleet.capacity.kv_formats import AUTO, format_of_flag
from pagefleet.capacity.quality import is_plain, is_plain_cache
from pagefleet.cli.errors import UserMistake
from pagefleet.cli.plan.safetensors_headers import read_json

USUAL_RECIPE = ["lm_head"]
"""What the engine leaves alone of rounded weights: results of other recipes are about another model."""

LEAST_WINDOW_TOKENS = 512
"""A packed cache keeps a sequence's first 64 tokens and its last block as computed, so short windows round nothing."""


def read_quality(path: Path, *, model: str, max_kl_nats: float) -> QualityGate:
    """Read the results of a model with the limit to hold them to; raises UserMistake."""
    try:
        document = read_json(path)
    except UserMistake:
        raise UserMistake(f"--quality {path} cannot be read: {_write_it(model)}") from None
    try:
        measured, window, results = (
            str(document["model"]),
            int(document["window_tokens"]),
            _results(document["choices"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserMistake(f"--quality {path} holds no quality results: {_write_it(model)}") from None
    if Path(measured).name != Path(model).name:  # a folder may lie elsewhere where it was measured
        raise UserMistake(f"--quality {path} is of {measured}, and the plan of {model}: {_write_it(model)}")
    if window < LEAST_WINDOW_TOKENS and not all(is_plain_cache(one.kv_cache) for one in results):
        raise UserMistake(
            f"--quality {path} has windows of {window} tokens, of which packed KV caches round next to nothing: "
            f"measure with --window {LEAST_WINDOW_TOKENS} or more"
        )
    return QualityGate(results=results, max_kl_nats=max_kl_nats)


def _results(choices: list[dict[str, Any]]) -> tuple[QualityResult, ...]:
    found = []
    for choice in choices:
        weights, kv_cache = str(choice["weights"]), format_of_flag(str(choice["kv_cache_dtype"]))
        kv_cache = AUTO if is_plain_cache(kv_cache) else kv_cache
        has_usual_recipe = weights == "none" or choice["ignored"] == USUAL_RECIPE
        if has_usual_recipe and not is_plain(weights, kv_cache, checkpoint=None):
            found.append(QualityResult(weights=weights, kv_cache=kv_cache, kl_nats=float(choice["kl_nats"])))
    return tuple(found)


def _write_it(model: str) -> str:
    return f"write it with pagefleet bench quality --model {model} --json FILE"


def manifest_line(gate: QualityGate, uri: str) -> str:
    """Return results as a manifest has them under `spec.tuning`."""
    results = ", ".join(
        f"{{weights: {one.weights}, kvCache: {one.kv_cache}, klNats: {one.kl_nats:g}}}" for one in gate.results
    )
    return f"quality: {{model: {json.dumps(uri)}, maxKlNats: {gate.max_kl_nats:g}, results: [{results}]}}"
