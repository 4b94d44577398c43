"""`pagefleet bench prefix`: the time to the first token when the prompt's beginning is cached, beside when it is not.

JSON: `miss_seconds` and `hit_seconds` hold medians by the clock (`wall`) and of own CPU time (`cpu`), `hit_over_miss`
their ratios; `pairs` holds every pair. `cpu` is null when a server computed. `blocks` holds what 1 and 8 choices of one
prompt occupy `at_first_token` and `at_second_token`, when the core runs in this process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from pagefleet.engine.bench.first_token import (
    FirstToken,
    Pair,
    PrefixPrompts,
    blocks_at_first_tokens,
    median_s,
    pairs_in_process,
    pairs_over_http,
)
from pagefleet.engine.bench.machine_rates import cpu_name
from pagefleet.engine.bench.our_engine import OurEngine
from pagefleet.engine.bench.setup import model_folder
from pagefleet.engine.bench.tables import check_writable, text_table, threads_text, write_json
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import StartupError

CHOICES = 8
"""Choices of one prompt whose blocks are counted beside those of a single one."""

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class PrefixOptions:
    """Say what to measure."""

    engine: EngineConfig
    preset: str = "S"
    shared_tokens: int = 1024
    own_tokens: int = 16
    pairs: int = 8
    url: str | None = None
    """A server to ask instead of a core in this process."""
    vocabulary_size: int = 1000
    """Prompts to a server are token ids below."""
    api_key: str | None = None
    json_path: Path | None = None


def run_prefix(options: PrefixOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report; raises StartupError or RequestRefused with the sentence for the user."""
    check_writable("--json", options.json_path)
    where, pairs, blocks = _at_server(options, options.url) if options.url else _in_process(options)
    _check_found(pairs, options)
    report: dict[str, object] = {
        **where,
        "shared_tokens": options.shared_tokens,
        "own_tokens": options.own_tokens,
        **_times(pairs),
        "pairs": [{"miss": _fields(pair.miss), "hit": _fields(pair.hit)} for pair in pairs],
        **blocks,
    }
    _print(report, pairs, say)
    write_json(report, options.json_path)
    return report


Measured = tuple[dict[str, object], list[Pair], dict[str, object]]
"""What measured, the pairs without the first, which warms up, and the blocks of choices."""


def _in_process(options: PrefixOptions) -> Measured:
    folder = model_folder(options.engine.model, options.preset)
    config = msgspec.structs.replace(
        options.engine,
        model=str(folder),
        max_model_len=options.shared_tokens + options.own_tokens + 4,
        max_num_seqs=CHOICES,
    )
    core = OurEngine(config).core
    prompts = _prompts(options, core.info.vocabulary_size)
    pairs = []
    with tqdm(total=options.pairs + 1, unit="pair", disable=None) as bar:
        for pair in pairs_in_process(core, prompts, options.pairs + 1):
            pairs.append(pair)
            bar.update()
    where: dict[str, object] = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "model": options.engine.model or f"preset {options.preset}",
        "dtype": core.info.dtype,
        "attention_backend": core.info.attention_backend,
        "linear_backend": core.info.linear_backend,
    }
    return where, pairs[1:], {"blocks": _blocks(core, prompts)}


def _blocks(core: EngineCore, prompts: PrefixPrompts) -> dict[str, object]:
    prompt, _ = prompts.pair(0)
    counts = {choices: blocks_at_first_tokens(core, prompt, choices) for choices in (1, CHOICES)}
    return {
        moment: {"of_1": counts[1][index], f"of_{CHOICES}": counts[CHOICES][index]}
        for index, moment in enumerate(("at_first_token", "at_second_token"))
    }


def _at_server(options: PrefixOptions, url: str) -> Measured:
    prompts = _prompts(options, options.vocabulary_size)
    with tqdm(total=options.pairs + 1, unit="pair", disable=None) as bar:
        pairs = pairs_over_http(url, prompts, options.pairs + 1, api_key=options.api_key, on_pair=bar.update)
    return {"url": url}, pairs[1:], {}


def _prompts(options: PrefixOptions, vocabulary_size: int) -> PrefixPrompts:
    return PrefixPrompts(
        shared_tokens=options.shared_tokens, own_tokens=options.own_tokens, vocabulary_size=vocabulary_size
    )


def _check_found(pairs: Sequence[Pair], options: PrefixOptions) -> None:
    """Raise StartupError when hits found nothing: there is no cache, or the shared part fills no block."""
    if all(pair.hit.cached_tokens for pair in pairs):
        return
    raise StartupError(
        f"--shared-tokens {options.shared_tokens} were not found again: the prefix cache is off, or a block holds more "
        "tokens; for example --shared-tokens 1024"
    )


def _times(pairs: Sequence[Pair]) -> dict[str, object]:
    miss_wall_s, miss_cpu_s = median_s([pair.miss for pair in pairs])
    hit_wall_s, hit_cpu_s = median_s([pair.hit for pair in pairs])
    return {
        "miss_seconds": {"wall": _rounded(miss_wall_s), "cpu": _rounded(miss_cpu_s)},
        "hit_seconds": {"wall": _rounded(hit_wall_s), "cpu": _rounded(hit_cpu_s)},
        "hit_over_miss": {
            "wall": round(hit_wall_s / miss_wall_s, 4),
            "cpu": round(hit_cpu_s / miss_cpu_s, 4) if hit_cpu_s is not None and miss_cpu_s is not None else None,
        },
    }


def _fields(request: FirstToken) -> dict[str, object]:
    return {
        "wall_seconds": _rounded(request.wall_s),
        "cpu_seconds": _rounded(request.cpu_s),
        "cached_tokens": request.cached_tokens,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _print(report: dict[str, object], pairs: Sequence[Pair], say: Say) -> None:
    where = report.get("url") or f"{report['cpu']}, {threads_text(report)}, {report['dtype']}, {report['model']}"
    say(
        f"{where}: {report['shared_tokens']} shared and {report['own_tokens']} own prompt tokens, {len(pairs)} pairs, "
        "medians of the time to the first token"
    )
    rows = []
    for name, requests in (("miss", [pair.miss for pair in pairs]), ("hit", [pair.hit for pair in pairs])):
        wall_s, cpu_s = median_s(requests)
        rows.append((name, 1000 * wall_s, "-" if cpu_s is None else 1000 * cpu_s, requests[0].cached_tokens))
    say(text_table(("prefix", "ms", "own CPU ms", "cached tokens"), rows))
    ratios = report["hit_over_miss"]
    assert isinstance(ratios, dict)  # noqa: S101 - made above
    by_cpu = "" if ratios["cpu"] is None else f", {ratios['cpu']:.1%} by CPU time"
    say(f"a hit takes {ratios['wall']:.1%} of a miss{by_cpu}")
    blocks = report.get("blocks")
    if isinstance(blocks, dict):
        one, several = (f"of_{choices}" for choices in (1, CHOICES))
        first, second = blocks["at_first_token"], blocks["at_second_token"]
        say(
            f"blocks of {CHOICES} choices over those of 1: {first[several] / first[one]:.2f} at the first token, "
            f"{second[several] / second[one]:.2f} at the second, when each has written"
        )
