"""`pagefleet profile`: fit the time of a step to a short ladder of loads, and say what it is spent on.

JSON: `fit` holds the four terms in seconds, `r_squared` and the relative `residuals` of the `samples`; `machine` the
measured rates (null where the server runs elsewhere); `device` and `memory_bytes` the accelerator (null where a
server's admin port is not reached); `analysis` the parts of a decode step and the gains; `words` what was printed.
`pagefleet plan --profile FILE` plans with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import torch
from tqdm import tqdm

from pagefleet.capacity import CannotPlan, pagefleet_profile
from pagefleet.capacity.bottleneck import Bottleneck, MeasuredLoad, find_bottleneck, sentences
from pagefleet.capacity.kv_formats import format_of_flag, kv_bytes_per_token
from pagefleet.capacity.step_fit import StepFit, StepSample, fit_step_time
from pagefleet.capacity.text import time_text
from pagefleet.engine.bench.machine_rates import measure_rates
from pagefleet.engine.bench.our_engine import OurEngine, model_sizes
from pagefleet.engine.bench.plot import Line, Panel, write_plot
from pagefleet.engine.bench.profile_core import measure_core
from pagefleet.engine.bench.profile_server import measure_server
from pagefleet.engine.bench.roofline import MachineRates
from pagefleet.engine.bench.setup import model_folder
from pagefleet.engine.bench.tables import check_writable, write_json
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.device import named_dtype
from pagefleet.engine.errors import StartupError
from pagefleet.engine.memory_report import read_facts
from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.startup import block_size_of

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_SEQUENCES = 256
"""The largest batch that is thought of."""

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Say what to profile."""

    engine: EngineConfig
    """Its model is profiled in this process, unless there is a `url`."""
    url: str | None = None
    admin_url: str | None = None
    """The server's admin port; None is the usual one of its host."""
    api_key: str | None = None
    vocabulary_size: int = 1000
    """Prompts to a server are token ids below."""
    batches: Sequence[int] = (1, 4, 16)
    """Decoding sequences; the largest is the load that is judged."""
    context: int = 512
    steps: int = 8
    """Decode steps of each rung."""
    prompt_tokens: float = 256
    output_tokens: float = 128
    json_path: Path | None = None
    plot_path: Path | None = None
    measure: Callable[[torch.dtype], MachineRates] = measure_rates


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Hold what was profiled, its samples, and what is known of the model and the machine."""

    name: str
    dtype: str
    weights: str
    kv_cache: str
    samples: Sequence[StepSample]
    most_sequences: int
    device: str
    memory_bytes: int | None = None
    """What the accelerator has; None where nobody tells."""
    capacity_words: str = ""
    rates: MachineRates | None = None
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    flop_per_token: float | None = None
    int8_weight_bytes: float | None = None
    int8_kv_share: float | None = None
    missing: tuple[str, ...] = ()


def run_profile(options: ProfileOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report; raises StartupError or RequestRefused with the sentence for the user."""
    check_writable("--json", options.json_path)
    check_writable("--plot", options.plot_path)
    subject = _model(options) if options.url is None else _server(options, options.url)
    try:
        fit = fit_step_time(subject.samples)
    except CannotPlan as error:
        raise StartupError(str(error)) from error
    load = _load(options, subject, fit)
    found = find_bottleneck(load)
    words = [*_fit_words(subject, fit), *filter(None, [subject.capacity_words]), *sentences(load, found)]
    for line in words:
        say(line)
    report: dict[str, object] = {
        "target": options.url or options.engine.model,
        "model": subject.name,
        "dtype": subject.dtype,
        "weights": subject.weights,
        "kv_cache": subject.kv_cache,
        "device": subject.device,
        "memory_bytes": subject.memory_bytes,
        "fit": {**asdict(fit.step), "r_squared": fit.r_squared, "residuals": list(fit.residuals)},
        "samples": [asdict(sample) for sample in subject.samples],
        "machine": None if subject.rates is None else asdict(subject.rates),
        "load": {"sequences": load.sequences, "context_tokens": load.context, "most_sequences": load.most_sequences},
        "analysis": asdict(found),
        "words": words,
    }
    write_json(report, options.json_path)
    write_plot(
        options.plot_path,
        [_roofline_panel(load, subject), _parts_panel(load)],
        title=f"{subject.name}, {subject.dtype}, weights {subject.weights}: decode, measured and fitted",
        say=say,
    )
    return report


def _model(options: ProfileOptions) -> Subject:
    folder = model_folder(options.engine.model, "S")
    longest = options.context + options.steps + 2 * block_size_of(options.engine)
    engine = OurEngine(
        msgspec.structs.replace(
            options.engine, model=str(folder), max_model_len=longest, max_num_seqs=max(options.batches)
        )
    )
    core, info = engine.core, engine.core.info
    rates = [options.measure(engine.dtype)]
    batches = sorted(set(options.batches))
    ladder = measure_core(core, batches=batches, context=options.context, steps=options.steps)
    samples = list(tqdm(ladder, unit="rung", disable=None))
    rates.append(options.measure(engine.dtype))
    sizes = model_sizes(folder, core)
    int8_bytes = sizes.body_parameters + sizes.head_parameters * sizes.bytes_per_parameter
    weight_bytes = {"none": sizes.weight_bytes, "int8": int8_bytes}.get(info.quantization, info.weight_bytes)
    memory = info.memory
    others_bytes = 0 if memory is None else memory.measured.total_bytes - memory.measured.kv_cache_bytes
    cache_bytes = info.memory_limit_bytes * info.gpu_memory_utilization - others_bytes
    return Subject(
        name=options.engine.model,
        dtype=info.dtype,
        weights=info.quantization,
        kv_cache=format_of_flag(info.kv_cache_dtype),
        samples=samples,
        most_sequences=_most_sequences(cache_bytes / sizes.kv_bytes_per_token, options),
        device=info.device,
        memory_bytes=info.memory_limit_bytes,
        rates=reduce(MachineRates.best_of, rates),
        weight_bytes=weight_bytes,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        flop_per_token=2 * (sizes.body_parameters + sizes.head_parameters),
        int8_weight_bytes=int8_bytes if info.quantization == "none" else None,
        int8_kv_share=_int8_kv_share(folder, format_of_flag(info.kv_cache_dtype), info.block_size),
        missing=_missing(info.device),
    )


def _server(options: ProfileOptions, url: str) -> Subject:
    facts, samples = measure_server(
        url,
        admin_url=options.admin_url,
        batches=sorted(set(options.batches)),
        context=options.context,
        steps=options.steps,
        vocabulary_size=options.vocabulary_size,
        api_key=options.api_key,
    )
    is_here = urlsplit(url).hostname in LOOPBACK and facts.device == "cpu"
    return Subject(
        name=facts.model,
        dtype=facts.dtype,
        weights=facts.quantization,
        kv_cache=format_of_flag(facts.kv_cache_dtype),
        samples=samples,
        most_sequences=_most_sequences(facts.kv_tokens, options),
        device=facts.device,
        memory_bytes=facts.memory_bytes,
        capacity_words=facts.capacity_words,
        rates=options.measure(named_dtype("--dtype", facts.dtype)) if is_here else None,
        weight_bytes=facts.weight_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
    )


def _most_sequences(kv_tokens: float, options: ProfileOptions) -> int:
    return max(1, min(MOST_SEQUENCES, int(kv_tokens // (options.prompt_tokens + options.output_tokens))))


def _int8_kv_share(folder: Path, kv_cache: str, block_size: int) -> float | None:
    if kv_cache not in ("float32", "bf16"):
        return None
    try:
        architecture = read_facts(ModelSource(folder)).architecture
    except (CannotPlan, StartupError, OSError, ValueError):
        return None
    int8, present = (kv_bytes_per_token(architecture, name, block_size=block_size) for name in ("int8", kv_cache))
    return int8 / present


def _missing(device: str) -> tuple[str, ...]:
    profile = pagefleet_profile(device)
    has = {"int8 weights": "int8" in profile.weights, "int8 KV cache": "int8" in profile.kv_cache}
    return tuple(name for name, is_there in has.items() if not is_there)


def _load(options: ProfileOptions, subject: Subject, fit: StepFit) -> MeasuredLoad:
    rates = subject.rates
    return MeasuredLoad(
        step=fit.step,
        sequences=max(options.batches),
        most_sequences=subject.most_sequences,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        weight_bytes=subject.weight_bytes,
        kv_bytes_per_token=subject.kv_bytes_per_token,
        flop_per_token=subject.flop_per_token,
        gemm_flop_per_s=None if rates is None else rates.gemm_flop_per_s,
        stream_bytes_per_s=None if rates is None else rates.stream_bytes_per_s,
        int8_weight_bytes=subject.int8_weight_bytes,
        int8_kv_share=subject.int8_kv_share,
        missing=subject.missing,
    )


def _fit_words(subject: Subject, fit: StepFit) -> list[str]:
    step, rates = fit.step, subject.rates
    worst = max(abs(residual) for residual in fit.residuals)
    machine = (
        ""
        if rates is None
        else (f" This machine: {rates.gemm_flop_per_s / 1e9:.0f} GFLOP/s, {rates.stream_bytes_per_s / 1e9:.1f} GB/s.")
    )
    return [
        f"{subject.name}, {subject.dtype}, weights {subject.weights}.{machine}",
        f"Step: {time_text(step.base_s)} + {time_text(step.prefill_token_s)} for each prompt token + "
        f"{time_text(step.sequence_s)} for each sequence + {time_text(step.kv_token_s * 1000)} for 1,000 cached tokens "
        f"(R² {fit.r_squared:.3f} over {len(fit.residuals)} loads, at most {worst:.0%} off).",
    ]


def _roofline_panel(load: MeasuredLoad, subject: Subject) -> Panel:
    """Draw tokens per second over the batch: what was measured, the fit, and what the machine allows."""
    sizes = [2**power for power in range(9)]
    lines = [
        Line(
            f"measured, {context:,.0f} tokens of context",
            [sample.sequences for sample in rungs],
            [sample.sequences / sample.step_s for sample in rungs],
        )
        for context, rungs in _by_context(subject.samples).items()
    ]
    step = load.step
    fitted = [size / (step.base_s + size * step.decode_s(load.context)) for size in sizes]
    lines.append(Line(f"fit, {load.context:,.0f} tokens", sizes, fitted))
    if load.weights_s is not None and load.products_s:
        kv_s = load.kv_read_s * load.context
        roof = [size / max(load.weights_s + size * kv_s, size * load.products_s) for size in sizes]
        lines.append(Line("memory and products alone", sizes, roof))
    return Panel(
        x_label="sequences per step", y_label="tokens/s", lines=lines, title="roofline", has_points=True, is_log=True
    )


def _by_context(samples: Sequence[StepSample]) -> dict[float, list[StepSample]]:
    found: dict[float, list[StepSample]] = {}
    for sample in samples:
        if sample.sequences and not sample.prefill_tokens:
            found.setdefault(round(sample.kv_tokens / sample.sequences / 16) * 16, []).append(sample)
    return found


def _parts_panel(load: MeasuredLoad) -> Panel:
    """Draw the parts of a decode step over the batch."""
    sizes = [2**power for power in range(9)]
    parts: list[Bottleneck] = [find_bottleneck(replace(load, sequences=size)) for size in sizes]
    lines = [
        Line("weights and KV cache", sizes, [1000 * ((one.weights_s or 0) + one.kv_s) for one in parts]),
        Line("products", sizes, [1000 * one.products_s for one in parts]),
        Line("overhead", sizes, [1000 * one.overhead_s for one in parts]),
    ]
    return Panel(x_label="sequences per step", y_label="ms of a decode step", lines=lines, title="parts", is_log=True)
