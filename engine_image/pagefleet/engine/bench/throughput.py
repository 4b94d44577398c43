"""`pagefleet bench throughput`: the offline workload through our engine, against the machine and transformers.

Everything that a server does for such requests is on: outputs become text in each step, a stop string is looked for,
and prompts are hashed for a prefix cache that is emptied between turns, so that no turn finds the blocks of another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import msgspec
import torch

from pagefleet.engine.bench.contest import Entry, run_rounds, same_outputs
from pagefleet.engine.bench.machine_rates import cpu_name, measure_rates
from pagefleet.engine.bench.our_engine import OurEngine, model_sizes
from pagefleet.engine.bench.plot import Bars, write_plot
from pagefleet.engine.bench.roofline import MachineRates, Roofline, roofline
from pagefleet.engine.bench.setup import fitted, model_folder, workload_of
from pagefleet.engine.bench.tables import check_writable, text_table, threads_text, write_json
from pagefleet.engine.bench.transformers_engine import (
    TransformersEngine,
    load_transformers,
    load_transformers_tokenizer,
)
from pagefleet.engine.bench.workload import BenchRequest, spread
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.quantization import QUANTIZATIONS
from pagefleet.engine.tokenizer import Tokenizer, load_tokenizer

STATIC_BATCH = 16
SEQUENTIAL = "hf_sequential"
STATIC = f"hf_static{STATIC_BATCH}"
POLICIES = ("continuous", "dynamic", "static")
PLAIN = "none"
"""The weights that others are compared with: the checkpoint's own."""

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions:
    """Say what to measure."""

    engine: EngineConfig
    """The preset's model is taken when it names none."""
    preset: str = "S"
    compare: str | None = None
    """`hf`, `batching`, `weights` or nothing."""
    requests: int = 64
    baseline_requests: int = 8
    """Requests that transformers runs one at a time; in static batches it runs twice as many, at least one batch."""
    rounds: int = 2
    makes_text: bool = True
    """Outputs become text; False is for models without a tokenizer."""
    json_path: Path | None = None
    plot_path: Path | None = None
    measure: Callable[[torch.dtype], MachineRates] = measure_rates


def run_throughput(options: ThroughputOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report; raises StartupError or RequestRefused with the sentence for the user."""
    check_writable("--json", options.json_path)
    check_writable("--plot", options.plot_path)
    folder = model_folder(options.engine.model, options.preset)
    requests = workload_of(folder, options.requests)
    config = fitted(options.engine, folder, requests)
    tokenizer = _tokenizer(folder) if options.makes_text else None
    name = {"batching": config.batching, "weights": PLAIN}.get(options.compare or "", "pagefleet")
    ours = OurEngine(config, name=name, tokenizer=tokenizer)
    entries = [Entry(ours, requests, f"all {len(requests)}")]
    if options.compare == "hf":
        entries += _transformers_entries(folder, ours.dtype, requests, options)
    elif options.compare == "batching":
        entries += [
            Entry(
                OurEngine(msgspec.structs.replace(config, batching=name), name=name, tokenizer=tokenizer),
                requests,
                entries[0].part,
            )
            for name in POLICIES
            if name != config.batching
        ]
    elif options.compare == "weights":
        entries += [
            Entry(
                OurEngine(msgspec.structs.replace(config, quantization=name), name=name, tokenizer=tokenizer),
                requests,
                entries[0].part,
            )
            for name in QUANTIZATIONS
            if name != PLAIN
        ]
    rates: list[MachineRates] = []
    run_rounds(entries, options.rounds, between=lambda: rates.append(options.measure(ours.dtype)))
    best = reduce(MachineRates.best_of, rates, options.measure(ours.dtype))
    ideal = roofline(model_sizes(folder, ours.core), entries[0].runs[0].steps, requests, best)
    report = _report(options, ours, entries, best, ideal)
    _print(report, entries, ideal, say)
    write_json(report, options.json_path)
    _plot(options.plot_path, report, entries, ideal, say)
    return report


def _tokenizer(folder: Path) -> Tokenizer:
    try:
        return load_tokenizer(folder, None)
    except StartupError as error:
        raise StartupError(f"{error}; --no-text measures tokens alone") from error


def _transformers_entries(
    folder: Path, dtype: torch.dtype, requests: Sequence[BenchRequest], options: ThroughputOptions
) -> list[Entry]:
    model = load_transformers(folder, dtype)
    tokenizer = load_transformers_tokenizer(folder) if options.makes_text else None
    alone = spread(requests, options.baseline_requests)
    batched = spread(requests, max(STATIC_BATCH, 2 * options.baseline_requests))
    return [
        Entry(
            TransformersEngine(model, name=name, batch_size=size, tokenizer=tokenizer),
            part,
            f"{len(part)} of {len(requests)}, spread",
        )
        for name, size, part in ((SEQUENTIAL, 1, alone), (STATIC, STATIC_BATCH, batched))
    ]


def _report(
    options: ThroughputOptions, ours: OurEngine, entries: list[Entry], rates: MachineRates, ideal: Roofline
) -> dict[str, object]:
    first, info = entries[0], ours.core.info
    run_s = first.wall_s / len(first.runs)
    report: dict[str, object] = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "model": options.engine.model or f"preset {options.preset}",
        "dtype": info.dtype,
        "attention_backend": info.attention_backend,
        "linear_backend": info.linear_backend,
        "batching": info.batching,
        "prefix_caching": info.enable_prefix_caching,
        "text": first.contestant.text,
        "block_size": info.block_size,
        "max_num_seqs": info.max_num_seqs,
        "requests": len(first.requests),
        "prompt_tokens": sum(len(request.prompt_token_ids) for request in first.requests),
        "output_tokens": first.runs[0].output_tokens,
        "steps": len(first.runs[0].steps),
        "output_tokens_per_second": round(first.tokens_per_s, 2),
        "roofline_fraction": round(ideal.ideal_s / run_s, 4),
        "roofline": {
            "gemm_gflop_per_second": round(rates.gemm_flop_per_s / 1e9, 2),
            "stream_gigabytes_per_second": round(rates.stream_bytes_per_s / 1e9, 2),
            "products_seconds": round(ideal.products_s, 4),
            "exposed_weights_seconds": round(ideal.exposed_weights_s, 4),
            "kv_seconds": round(ideal.kv_s, 4),
            "ideal_seconds": round(ideal.ideal_s, 4),
        },
        "contestants": {entry.contestant.name: entry.summary() for entry in entries},
        "ratios": {entry.contestant.name: round(first.tokens_per_s / entry.tokens_per_s, 3) for entry in entries[1:]},
    }
    text_cpu_s = [run.text_cpu_s for run in first.runs if run.text_cpu_s is not None]
    if text_cpu_s:
        report["text_share_of_cpu_time"] = round(sum(text_cpu_s) / sum(run.own_cpu_s for run in first.runs), 4)
    if torch.get_num_threads() == 1:  # the rates are those of one thread, so its own time compares too
        own_s = sum(run.own_cpu_s for run in first.runs) / len(first.runs)
        report["roofline_fraction_of_cpu_time"] = round(ideal.ideal_s / own_s, 4)
    if options.compare is not None:
        same = {entry.contestant.name: same_outputs(first, entry) for entry in entries[1:]}
        report["same_outputs"] = {name: {"same": same_, "of": of} for name, (same_, of) in same.items()}
    return report


def _print(report: dict[str, object], entries: list[Entry], ideal: Roofline, say: Say) -> None:
    first = entries[0]
    say(
        f"{report['cpu']}, {threads_text(report)}, {report['dtype']}, {report['model']}: {report['requests']} "
        f"requests, {report['prompt_tokens']} prompt and {report['output_tokens']} output tokens, greedy, all there at "
        f"once; {report['steps']} steps of at most {report['max_num_seqs']} sequences"
    )
    rows = [
        (
            entry.contestant.name,
            entry.part,
            entry.contestant.text,
            entry.tokens_per_s,
            entry.tokens_per_cpu_s,
            first.tokens_per_s / entry.tokens_per_s,
            first.tokens_per_cpu_s / entry.tokens_per_cpu_s,
            entry.other_busy_cores,
        )
        for entry in entries
    ]
    header = ("engine", "requests", "text", "tok/s", "tok/CPU s", "ratio", "of CPU time", "others' cores")
    say(text_table(header, rows))
    say(_what_is_on(report))
    rates = report["roofline"]
    assert isinstance(rates, dict)  # noqa: S101 - made above
    say(
        f"roofline: {rates['gemm_gflop_per_second']} GFLOP/s and {rates['stream_gigabytes_per_second']} GB/s measured; "
        f"products {ideal.products_s:.2f} s + weights not hidden {ideal.exposed_weights_s:.2f} s + KV {ideal.kv_s:.2f} "
        f"s = {ideal.ideal_s:.2f} s, {_share(report['roofline_fraction'])} of it reached"
        + (
            f" ({_share(report['roofline_fraction_of_cpu_time'])} by CPU time)"
            if "roofline_fraction_of_cpu_time" in report
            else ""
        )
    )
    if "same_outputs" in report:
        same = report["same_outputs"]
        assert isinstance(same, dict)  # noqa: S101 - made above
        say("same tokens: " + ", ".join(f"{name} {each['same']} of {each['of']}" for name, each in same.items()))


def _plot(path: Path | None, report: dict[str, object], entries: list[Entry], ideal: Roofline, say: Say) -> None:
    limit = ("this machine's roofline", entries[0].runs[0].output_tokens / ideal.ideal_s)
    panels = [
        Bars(
            y_label="output tokens per second",
            values={entry.contestant.name: entry.tokens_per_s for entry in entries},
            limit=limit,
        ),
        Bars(
            y_label="output tokens per second of own CPU time",
            values={entry.contestant.name: entry.tokens_per_cpu_s for entry in entries},
            limit=limit,
        ),
    ]
    what = f"{report['requests']} requests, {report['model']}, {report['dtype']}"
    write_plot(path, panels, title=f"{what}, {threads_text(report)}, {report['cpu']}", say=say)


def _what_is_on(report: dict[str, object]) -> str:
    hashing = "prefix hashing" if report["prefix_caching"] else "no prefix hashing"
    if "text_share_of_cpu_time" not in report:
        return f"on: {hashing}; off (--no-text): detokenisation and stop strings"
    share = report["text_share_of_cpu_time"]
    assert isinstance(share, float)  # noqa: S101 - made above
    return f"on: {hashing}, detokenisation and a stop string, which take {share:.1%} of our CPU time"


def _share(fraction: object) -> str:
    assert isinstance(fraction, float)  # noqa: S101 - made above
    return f"{fraction:.0%}"
