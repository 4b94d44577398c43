"""`pagefleet bench`: its flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pagefleet.cli.api_keys import first_api_key
from pagefleet.cli.engine_checks import find_mistakes
from pagefleet.cli.engine_command import ENGINE_MODULES
from pagefleet.cli.errors import CommandError, UserMistake, require_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagefleet.engine.config import EngineConfig

BENCH_MODULES = (*ENGINE_MODULES, "tqdm")

POLICIES_MAX_NUM_SEQS = 16
"""Places when batching policies are compared: with one for every request all of them run a single batch."""

Preset = Annotated[Literal["S", "M", "L"], typer.Option(help="Random model: 16M, 125M or 500M parameters.")]
Model = Annotated[str, typer.Option(help="Folder or hub id instead of a preset.", show_default=False)]
Requests = Annotated[int, typer.Option(help="Requests of the workload.")]
Dtype = Annotated[Literal["auto", "bfloat16", "float32"], typer.Option(help="Compute type of all engines.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of all engines; default all cores but one.")]
Rounds = Annotated[int, typer.Option(help="Turns of every engine.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Sequences in one step at most.")]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="Write a picture here (PNG).", metavar="FILE")]
BlockSize = Annotated[int, typer.Option(help="Tokens in one KV block.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the report here.", metavar="FILE")]


def throughput(
    preset: Preset = "S",
    model: Model = "",
    compare: Annotated[
        Literal["hf", "batching"] | None,
        typer.Option(help="Beside ours, in turns: transformers' generate, or our batching policies at equal memory."),
    ] = None,
    requests: Requests = 64,
    baseline_requests: Annotated[
        int, typer.Option(help="Requests that transformers runs one at a time; twice as many in static batches.")
    ] = 8,
    rounds: Rounds = 2,
    batching: Annotated[
        Literal["continuous", "dynamic", "static"], typer.Option(help="Batching policy of our engine.")
    ] = "continuous",
    max_num_seqs: Annotated[
        int | None,
        typer.Option(help="Sequences in one step at most; default 64, or 16 to compare policies.", show_default=False),
    ] = None,
    block_size: BlockSize = 16,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Measure tokens alone, for a model without a tokenizer.")
    ] = False,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Run a fixed offline workload: tokens per second, the share of the machine's roofline, ratios to others.

    All that a server does is on: text, a stop string, prefix hashing.
    """
    _require()
    from pagefleet.engine.bench.throughput import ThroughputOptions, run_throughput

    _check_counts(("--requests", requests), ("--baseline-requests", baseline_requests), ("--rounds", rounds))
    engine = _engine(
        model=model,
        batching=batching,
        max_num_seqs=max_num_seqs
        if max_num_seqs is not None
        else (POLICIES_MAX_NUM_SEQS if compare == "batching" else 64),
        block_size=block_size,
        dtype=dtype,
        threads=threads,
    )
    options = ThroughputOptions(
        engine=engine,
        preset=preset,
        compare=compare,
        requests=requests,
        baseline_requests=baseline_requests,
        rounds=rounds,
        makes_text=not no_text,
        json_path=json_path,
    )
    _run(lambda: run_throughput(options, typer.echo))


def waste(
    preset: Preset = "S",
    model: Model = "",
    requests: Requests = 64,
    max_num_seqs: MaxNumSeqs = 64,
    block_size: BlockSize = 16,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
) -> None:
    """Count KV slots over time: filled, held in blocks, and what a cache without pages would reserve."""
    _require()
    from pagefleet.engine.bench.waste import WasteOptions, run_waste

    _check_counts(("--requests", requests))
    engine = _engine(model=model, max_num_seqs=max_num_seqs, block_size=block_size, dtype=dtype, threads=threads)
    options = WasteOptions(engine=engine, preset=preset, requests=requests, json_path=json_path, plot_path=plot_path)
    _run(lambda: run_waste(options, typer.echo))


def block_size(
    sizes: Annotated[list[int] | None, typer.Argument(help="Tokens in a block; default 16 32 64 128.")] = None,
    preset: Preset = "S",
    model: Model = "",
    requests: Requests = 64,
    rounds: Rounds = 2,
    max_num_seqs: MaxNumSeqs = 64,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
) -> None:
    """Measure throughput and waste by block size, all sizes in turns."""
    _require()
    from pagefleet.engine.bench.block_size import BlockSizeOptions, run_block_sizes

    sizes = sizes or [16, 32, 64, 128]
    _check_counts(("--requests", requests), ("--rounds", rounds), *(("SIZES", size) for size in sizes))
    engine = _engine(model=model, max_num_seqs=max_num_seqs, dtype=dtype, threads=threads)
    options = BlockSizeOptions(
        engine=engine,
        block_sizes=sizes,
        preset=preset,
        requests=requests,
        rounds=rounds,
        json_path=json_path,
        plot_path=plot_path,
    )
    _run(lambda: run_block_sizes(options, typer.echo))


def serving(
    url: Annotated[str, typer.Option(help="Server to ask, for example http://127.0.0.1:8000.")],
    model: Annotated[str, typer.Option(help="Model to ask; default the first that the server lists.")] = "",
    requests: Requests = 64,
    rate: Annotated[float, typer.Option(help="Requests per second of the Poisson process.")] = 4.0,
    trace: Annotated[
        Path | None,
        typer.Option(help="Arrivals and lengths instead: Azure's CSV or Mooncake's .jsonl.", metavar="FILE"),
    ] = None,
    speed: Annotated[float, typer.Option(help="Play the trace so many times faster.")] = 1.0,
    vocabulary_size: Annotated[int, typer.Option(help="Prompts are random token ids below this.")] = 1000,
    most_tokens: Annotated[int, typer.Option(help="Longer requests are cut to so many tokens in all.")] = 768,
    slo_ttft: Annotated[float, typer.Option(help="Seconds to the first token of a good request, at most.")] = 2.0,
    slo_tpot: Annotated[float, typer.Option(help="Seconds for each further token of a good request, at most.")] = 0.2,
    api_key: Annotated[str | None, typer.Option(envvar="PAGEFLEET_API_KEY", help="Key of the server.")] = None,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
) -> None:
    """Send requests to a server at their own times: latencies, and goodput under an SLO."""
    require_extra("bench", (*BENCH_MODULES, "httpx"))
    from pagefleet.engine.bench.latencies import Slo
    from pagefleet.engine.bench.serving import ServingOptions, run_serving

    _check_counts(("--requests", requests), ("--vocabulary-size", vocabulary_size))
    if most_tokens < 2:
        raise UserMistake(f"--most-tokens {most_tokens} holds no prompt and output: for example --most-tokens 768.")
    for flag, value in (("--rate", rate), ("--speed", speed), ("--slo-ttft", slo_ttft), ("--slo-tpot", slo_tpot)):
        if not 0 < value < float("inf"):
            raise UserMistake(f"{flag} {value:g} is not a number above 0: for example {flag} 2.")
    options = ServingOptions(
        url=url,
        model=model,
        requests=requests,
        rate_per_s=rate,
        trace=trace,
        speed=speed,
        vocabulary_size=vocabulary_size,
        most_tokens=most_tokens,
        slo=Slo(slo_ttft, slo_tpot),
        api_key=first_api_key(api_key),
        json_path=json_path,
        plot_path=plot_path,
    )
    _run(lambda: run_serving(options, typer.echo))


def prefix(
    preset: Preset = "S",
    model: Model = "",
    shared_tokens: Annotated[int, typer.Option(help="Prompt tokens that a pair of requests has in common.")] = 1024,
    own_tokens: Annotated[int, typer.Option(help="Prompt tokens that follow, of each request alone.")] = 16,
    pairs: Annotated[int, typer.Option(help="Pairs of a miss and a hit.")] = 8,
    url: Annotated[
        str | None, typer.Option(help="Ask this server instead of a core in this process.", show_default=False)
    ] = None,
    vocabulary_size: Annotated[int, typer.Option(help="Prompts to a server are random token ids below this.")] = 1000,
    api_key: Annotated[str | None, typer.Option(envvar="PAGEFLEET_API_KEY", help="Key of the server.")] = None,
    block_size: BlockSize = 16,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Time the first token when the prompt's beginning is cached, beside when not; count the blocks of choices."""
    require_extra("bench", (*BENCH_MODULES, "httpx"))
    from pagefleet.engine.bench.prefix import PrefixOptions, run_prefix

    _check_counts(
        ("--shared-tokens", shared_tokens),
        ("--own-tokens", own_tokens),
        ("--pairs", pairs),
        ("--vocabulary-size", vocabulary_size),
    )
    options = PrefixOptions(
        engine=_engine(model=model, block_size=block_size, dtype=dtype, threads=threads),
        preset=preset,
        shared_tokens=shared_tokens,
        own_tokens=own_tokens,
        pairs=pairs,
        url=url,
        vocabulary_size=vocabulary_size,
        api_key=first_api_key(api_key),
        json_path=json_path,
    )
    _run(lambda: run_prefix(options, typer.echo))


def step(
    batches: Annotated[str, typer.Option(help="Numbers of running sequences.", metavar="N,N,…")] = "1,8,32,64,256",
    preset: Preset = "S",
    model: Model = "",
    context: Annotated[int, typer.Option(help="Tokens of each sequence in the middle of the measured steps.")] = 200,
    steps: Annotated[int, typer.Option(help="Steps measured for each number of sequences.")] = 32,
    block_size: BlockSize = 16,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Measure a decode step by the number of running sequences: its time, and what scheduling and Python take of it."""
    _require()
    from pagefleet.engine.bench.step import StepOptions, run_step

    numbers = _numbers("--batches", batches)
    _check_counts(*(("--batches", number) for number in numbers), ("--context", context), ("--steps", steps))
    options = StepOptions(
        engine=_engine(model=model, block_size=block_size, dtype=dtype, threads=threads),
        preset=preset,
        batches=numbers,
        context_tokens=context,
        steps=steps,
        json_path=json_path,
    )
    _run(lambda: run_step(options, typer.echo))


def quality(
    weights: Annotated[
        str, typer.Option(help="Precisions of the weights: none, int8.", metavar="NAME,…")
    ] = "none,int8",
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTS",
            help="Parts that int8 leaves alone, again for another choice; default lm_head, an empty text rounds all.",
            show_default=False,
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="Types of the KV cache: auto, bfloat16, float32.", metavar="NAME,…")
    ] = "auto,bfloat16",
    preset: Preset = "S",
    model: Model = "",
    text: Annotated[
        Path | None, typer.Option(help="Read this text instead of ours.", metavar="FILE", show_default=False)
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens of text that are read together.")] = 512,
    max_kl: Annotated[
        float | None, typer.Option(help="Fail when a choice's mean KL is above, in nats.", show_default=False)
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(help="Fail when a choice has a smaller share of equal likeliest tokens.", show_default=False),
    ] = None,
    block_size: BlockSize = 16,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Compare every weights x KV cache with float32 on a fixed text: KL, agreement, perplexity.

    Exits with 1 when a choice is beyond a limit.
    """
    _require()
    from pagefleet.engine.bench.quality import QualityOptions, QualityTooLow, choices_of, run_quality

    _check_counts(("--window", window))
    if max_kl is not None and not 0 <= max_kl < float("inf"):
        raise UserMistake(f"--max-kl {max_kl:g} is not a number of 0 or more: for example --max-kl 0.03.")
    if min_agreement is not None and not 0 <= min_agreement <= 1:
        raise UserMistake(f"--min-agreement {min_agreement:g} is not a share: for example --min-agreement 0.9.")
    options = QualityOptions(
        engine=_engine(model=model, block_size=block_size, dtype=dtype, threads=threads),
        choices=choices_of(_names(weights), [_names(parts) for parts in ignore or ["lm_head"]], _names(kv_cache_dtype)),
        preset=preset,
        text=text,
        window_tokens=window,
        max_kl=max_kl,
        min_agreement=min_agreement,
        json_path=json_path,
    )
    try:
        _run(lambda: run_quality(options, typer.echo))
    except QualityTooLow as error:
        raise CommandError(error.sentences) from error


def _require() -> None:
    require_extra("bench", BENCH_MODULES)


def _engine(**settings: Any) -> EngineConfig:
    """Return the engine's settings on the CPU; raises UserMistake when one is out of range."""
    from pagefleet.engine.config import EngineConfig, ServerConfig

    engine = EngineConfig(device="cpu", **settings)
    named = EngineConfig(device="cpu", **{**settings, "model": settings["model"] or "a preset"})
    if mistakes := find_mistakes(named, ServerConfig()):
        raise UserMistake(mistakes)
    return engine


def _check_counts(*counts: tuple[str, int]) -> None:
    if mistakes := [
        f"{flag} {value} is too small: the smallest is 1, for example {flag} 8." for flag, value in counts if value < 1
    ]:
        raise UserMistake(mistakes)


def _numbers(flag: str, text: str) -> list[int]:
    """Return the whole numbers of a list with commas; raises UserMistake."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserMistake(f"{flag} {text} is not a list of whole numbers: for example {flag} 1,8,64.") from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _run(measure: Callable[[], object]) -> None:
    """Measure, with the engine's own sentences as the user's."""
    from pagefleet.engine.errors import RequestRefused, StartupError

    try:
        measure()
    except (StartupError, RequestRefused) as error:
        raise UserMistake(str(error)) from error
