"""`pagefleet bench`: the flags of what measures speed and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pagefleet.cli.api_keys import first_api_key
from pagefleet.cli.bench_options import (
    BENCH_MODULES,
    BlockSize,
    Dtype,
    JsonPath,
    MaxNumSeqs,
    Model,
    PlotPath,
    Preset,
    Requests,
    Rounds,
    Threads,
    bench_engine,
    check_counts,
    parse_names,
    parse_numbers,
    require_bench,
    run_measurement,
)
from pagefleet.cli.errors import UserMistake, require_extra

POLICIES_MAX_NUM_SEQS = 16
"""Places when batching policies are compared: with one for every request all of them run a single batch."""


def throughput(
    preset: Preset = "S",
    model: Model = "",
    compare: Annotated[
        Literal["hf", "batching", "weights"] | None,
        typer.Option(
            help="Beside ours, in turns: transformers' generate, our batching policies at equal memory, or 8 and 4-bit "
            "weights."
        ),
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
    block_size: BlockSize = None,
    no_text: Annotated[
        bool, typer.Option("--no-text", help="Measure tokens alone, for a model without a tokenizer.")
    ] = False,
    ignore: Annotated[
        str,
        typer.Option(help="Parts whose weights stay plain with --compare weights; '' rounds all.", metavar="PART,…"),
    ] = "lm_head",
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
) -> None:
    """Run a fixed offline workload: tokens per second, the share of the machine's roofline, ratios to others.

    All that a server does is on: text, a stop string, prefix hashing.
    """
    require_bench()
    from pagefleet.engine.bench.throughput import ThroughputOptions, run_throughput

    check_counts(("--requests", requests), ("--baseline-requests", baseline_requests), ("--rounds", rounds))
    engine = bench_engine(
        model=model,
        batching=batching,
        max_num_seqs=max_num_seqs
        if max_num_seqs is not None
        else (POLICIES_MAX_NUM_SEQS if compare == "batching" else 64),
        quantization_ignore=parse_names(ignore),
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
        plot_path=plot_path,
    )
    run_measurement(lambda: run_throughput(options, typer.echo))


def waste(
    preset: Preset = "S",
    model: Model = "",
    requests: Requests = 64,
    max_num_seqs: MaxNumSeqs = 64,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
) -> None:
    """Count KV slots over time: filled, held in blocks, and what a cache without pages would reserve."""
    require_bench()
    from pagefleet.engine.bench.waste import WasteOptions, run_waste

    check_counts(("--requests", requests))
    engine = bench_engine(model=model, max_num_seqs=max_num_seqs, block_size=block_size, dtype=dtype, threads=threads)
    options = WasteOptions(engine=engine, preset=preset, requests=requests, json_path=json_path, plot_path=plot_path)
    run_measurement(lambda: run_waste(options, typer.echo))


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
    require_bench()
    from pagefleet.engine.bench.block_size import BlockSizeOptions, run_block_sizes

    sizes = sizes or [16, 32, 64, 128]
    check_counts(("--requests", requests), ("--rounds", rounds), *(("SIZES", size) for size in sizes))
    engine = bench_engine(model=model, max_num_seqs=max_num_seqs, dtype=dtype, threads=threads)
    options = BlockSizeOptions(
        engine=engine,
        block_sizes=sizes,
        preset=preset,
        requests=requests,
        rounds=rounds,
        json_path=json_path,
        plot_path=plot_path,
    )
    run_measurement(lambda: run_block_sizes(options, typer.echo))


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

    check_counts(("--requests", requests), ("--vocabulary-size", vocabulary_size))
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
    run_measurement(lambda: run_serving(options, typer.echo))


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
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Time the first token when the prompt's beginning is cached, beside when not; count the blocks of choices."""
    require_extra("bench", (*BENCH_MODULES, "httpx"))
    from pagefleet.engine.bench.prefix import PrefixOptions, run_prefix

    check_counts(
        ("--shared-tokens", shared_tokens),
        ("--own-tokens", own_tokens),
        ("--pairs", pairs),
        ("--vocabulary-size", vocabulary_size),
    )
    options = PrefixOptions(
        engine=bench_engine(model=model, block_size=block_size, dtype=dtype, threads=threads),
        preset=preset,
        shared_tokens=shared_tokens,
        own_tokens=own_tokens,
        pairs=pairs,
        url=url,
        vocabulary_size=vocabulary_size,
        api_key=first_api_key(api_key),
        json_path=json_path,
    )
    run_measurement(lambda: run_prefix(options, typer.echo))


def step(
    batches: Annotated[str, typer.Option(help="Numbers of running sequences.", metavar="N,N,…")] = "1,8,32,64,256",
    preset: Preset = "S",
    model: Model = "",
    context: Annotated[int, typer.Option(help="Tokens of each sequence in the middle of the measured steps.")] = 200,
    steps: Annotated[int, typer.Option(help="Steps measured for each number of sequences.")] = 32,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Measure a decode step by the number of running sequences: its time, and what scheduling and Python take of it."""
    require_bench()
    from pagefleet.engine.bench.step import StepOptions, run_step

    numbers = parse_numbers("--batches", batches)
    check_counts(*(("--batches", number) for number in numbers), ("--context", context), ("--steps", steps))
    options = StepOptions(
        engine=bench_engine(model=model, block_size=block_size, dtype=dtype, threads=threads),
        preset=preset,
        batches=numbers,
        context_tokens=context,
        steps=steps,
        json_path=json_path,
    )
    run_measurement(lambda: run_step(options, typer.echo))


def scrape(
    preset: Preset = "S",
    model: Model = "",
    sequences: Annotated[int, typer.Option(help="Requests that decode meanwhile.")] = 8,
    scrapes: Annotated[int, typer.Option(help="Looks at /capacity, of the idle and of the busy server.")] = 1000,
    rounds: Rounds = 4,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Measure what a look at /capacity costs a server of one's own, and whether it slows the steps beside."""
    require_extra("bench", (*BENCH_MODULES, "httpx", "psutil"))
    from pagefleet.engine.bench.scrape import ScrapeOptions, run_scrape

    check_counts(("--sequences", sequences), ("--rounds", rounds), ("--scrapes", scrapes))
    if scrapes < rounds:
        raise UserMistake(f"--scrapes {scrapes} is too small for {rounds} rounds: for example --scrapes {rounds}.")
    options = ScrapeOptions(
        engine=bench_engine(model=model, dtype=dtype, threads=threads),
        preset=preset,
        sequences=sequences,
        scrapes=scrapes,
        rounds=rounds,
        json_path=json_path,
    )
    run_measurement(lambda: run_scrape(options, typer.echo))
