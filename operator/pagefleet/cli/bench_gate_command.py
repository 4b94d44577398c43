"""`pagefleet bench soak` and `quality`: measurements that judge, and exit with 1 when something is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagefleet.cli.api_keys import first_api_key
from pagefleet.cli.bench_options import (
    BENCH_MODULES,
    BlockSize,
    Dtype,
    JsonPath,
    MaxNumSeqs,
    Model,
    Preset,
    Threads,
    bench_engine,
    check_counts,
    parse_names,
    require_bench,
    run_measurement,
)
from pagefleet.cli.engine_command import parse_bytes
from pagefleet.cli.errors import CommandError, UserMistake, require_extra

SOAK_KV_CACHE_BYTES = 12 * 2**20
"""One whole context of preset S, so that sequences are preempted."""


def soak(
    preset: Preset = "S",
    model: Model = "",
    duration_s: Annotated[float, typer.Option(help="Seconds that clients send requests.")] = 900.0,
    clients: Annotated[int, typer.Option(help="Clients, each with one request at a time.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the mixture.")] = 0,
    max_num_seqs: MaxNumSeqs = 8,
    max_num_queued_reqs: Annotated[int, typer.Option(help="Requests that may wait before new ones get 503.")] = 8,
    kv_cache_memory_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_bytes, metavar="BYTES", help="Size of the KV cache; default 12Mi, so that some wait."
        ),
    ] = None,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    url: Annotated[str, typer.Option(help="Soak this running server instead, with no other clients.")] = "",
    admin_url: Annotated[str, typer.Option(help="Its admin port, such as http://127.0.0.1:9000.")] = "",
    pid: Annotated[
        int | None, typer.Option(help="Its API process, if it runs here: then its memory is judged.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="PAGEFLEET_API_KEY", help="Its key.")] = None,
    json_path: JsonPath = None,
) -> None:
    """Send a server all that a real one meets, for long: nothing may be lost, and its memory must stay flat."""
    require_extra("bench", (*BENCH_MODULES, "httpx"))
    from pagefleet.engine.bench.soak import SoakOptions, run_soak
    from pagefleet.engine.bench.soak_memory import SHORTEST_S
    from pagefleet.engine.errors import EngineDead

    check_counts(("--clients", clients))
    if not SHORTEST_S <= duration_s < float("inf"):
        raise UserMistake(f"--duration-s {duration_s:g} cannot be judged: {SHORTEST_S:g} or more, such as 900.")
    if bool(url) != bool(admin_url) or (pid is not None and not url):
        raise UserMistake("--url needs --admin-url, and --pid needs both: for example http://127.0.0.1:9000.")
    engine = bench_engine(
        model=model,
        max_num_seqs=max_num_seqs,
        max_num_queued_reqs=max_num_queued_reqs,
        kv_cache_memory_bytes=SOAK_KV_CACHE_BYTES if kv_cache_memory_bytes is None else kv_cache_memory_bytes,
        seed=seed,
        block_size=block_size,
        dtype=dtype,
        threads=threads,
        scheduling_policy="priority",
    )
    options = SoakOptions(
        engine=engine,
        preset=preset,
        url=url,
        admin_url=admin_url,
        process_id=pid,
        api_key=first_api_key(api_key),
        duration_s=duration_s,
        clients=clients,
        seed=seed,
        json_path=json_path,
    )

    def soak_and_judge() -> None:
        try:
            report = run_soak(options, typer.echo)
        except EngineDead as error:
            raise CommandError(str(error)) from error
        if broken := report["broken_rules"]:
            raise CommandError(broken)

    run_measurement(soak_and_judge)


def quality(
    weights: Annotated[
        str, typer.Option(help="Precisions of the weights: none, int8, int4.", metavar="NAME,…")
    ] = "none,int8",
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTS",
            help="Parts that keep their precision, again for another choice; default lm_head, an empty text is none.",
            show_default=False,
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="Types of the KV cache: auto, bfloat16, float32, int8, int4, k4v3.", metavar="NAME,…")
    ] = "auto,bfloat16",
    preset: Preset = "S",
    model: Model = "",
    reference: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Compare with this model, such as the one that --model was quantized from; default --model itself.",
            show_default=False,
        ),
    ] = "",
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
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
) -> None:
    """Compare every weights x KV cache with float32 on a fixed text: KL, agreement, perplexity.

    Exits with 1 when a choice is beyond a limit.
    """
    require_bench()
    from pagefleet.engine.bench.quality import QualityOptions, QualityTooLow, choices_of, run_quality

    check_counts(("--window", window))
    if max_kl is not None and not 0 <= max_kl < float("inf"):
        raise UserMistake(f"--max-kl {max_kl:g} is not a number of 0 or more: for example --max-kl 0.03.")
    if min_agreement is not None and not 0 <= min_agreement <= 1:
        raise UserMistake(f"--min-agreement {min_agreement:g} is not a share: for example --min-agreement 0.9.")
    options = QualityOptions(
        engine=bench_engine(model=model, block_size=block_size, dtype=dtype, threads=threads),
        choices=choices_of(
            parse_names(weights), [parse_names(parts) for parts in ignore or ["lm_head"]], parse_names(kv_cache_dtype)
        ),
        reference=reference,
        preset=preset,
        text=text,
        window_tokens=window,
        max_kl=max_kl,
        min_agreement=min_agreement,
        json_path=json_path,
    )
    try:
        run_measurement(lambda: run_quality(options, typer.echo))
    except QualityTooLow as error:
        raise CommandError(error.sentences) from error
