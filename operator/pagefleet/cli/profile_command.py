"""`pagefleet profile`: what an engine spends its time on, and which knob would gain how much, measured in a minute."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pagefleet.cli.api_keys import first_api_key
from pagefleet.cli.bench_options import (
    BENCH_MODULES,
    BlockSize,
    Dtype,
    JsonPath,
    PlotPath,
    Threads,
    bench_engine,
    check_counts,
    parse_numbers,
    run_measurement,
)
from pagefleet.cli.errors import UserMistake, require_extra


def profile(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL|MODEL",
            help="A running server (http://…), or a folder, GGUF file, hub id or package://module/file.",
            show_default=False,
        ),
    ],
    batches: Annotated[
        str, typer.Option(help="Decoding sequences; the largest is judged.", metavar="N,N,…")
    ] = "1,4,16",
    context: Annotated[int, typer.Option(help="Tokens of the longest decoding sequences.")] = 512,
    steps: Annotated[int, typer.Option(help="Decode steps of each batch.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(help="Prompt of the requests that are judged.")] = 256,
    output_tokens: Annotated[int, typer.Option(help="Output of the requests that are judged.")] = 128,
    quantization: Annotated[Literal["none", "int8"], typer.Option(help="Weights of a MODEL.")] = "none",
    vocabulary_size: Annotated[int, typer.Option(help="Prompts to a server are random token ids below this.")] = 1000,
    api_key: Annotated[str | None, typer.Option(envvar="PAGEFLEET_API_KEY", help="Key of the server.")] = None,
    admin_url: Annotated[
        str | None, typer.Option(help="Admin port of the server; default port 9000 of its host.", metavar="URL")
    ] = None,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_path: JsonPath = None,
    plot_path: PlotPath = None,
) -> None:
    """Fit the time of a step to a short ladder of loads; say what bounds it and what would help, in which order."""
    require_extra("bench", (*BENCH_MODULES, "httpx"))
    from pagefleet.engine.bench.profile import ProfileOptions, run_profile

    numbers = parse_numbers("--batches", batches)
    check_counts(
        *(("--batches", number) for number in numbers),
        ("--context", context),
        ("--steps", steps),
        ("--prompt-tokens", prompt_tokens),
        ("--output-tokens", output_tokens),
        ("--vocabulary-size", vocabulary_size),
    )
    if len(set(numbers)) < 2:
        raise UserMistake(f"--batches {batches} is one batch, which tells no slope: for example --batches 1,4,16.")
    if block_size is not None and context < 2 * block_size:
        raise UserMistake(f"--context {context} is less than two blocks: for example --context {8 * block_size}.")
    is_url = target.startswith(("http://", "https://"))
    if not target:
        raise UserMistake("URL|MODEL is empty: for example http://127.0.0.1:8000, or a folder with config.json.")
    if admin_url is not None and (not is_url or not admin_url.startswith(("http://", "https://"))):
        raise UserMistake(f"--admin-url {admin_url} is for a server's URL: for example http://127.0.0.1:9000.")
    options = ProfileOptions(
        engine=bench_engine(
            model="" if is_url else target,
            block_size=block_size,
            dtype=dtype,
            threads=threads,
            quantization=quantization,
        ),
        url=target if is_url else None,
        admin_url=admin_url,
        api_key=first_api_key(api_key),
        vocabulary_size=vocabulary_size,
        batches=numbers,
        context=context,
        steps=steps,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        json_path=json_path,
        plot_path=plot_path,
    )
    run_measurement(lambda: run_profile(options, typer.echo))
