"""`pagefleet quantize`: write a checkpoint of rounded weights."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pagefleet.cli.bench_options import check_counts, run_measurement
from pagefleet.cli.errors import UserMistake, require_extra


def quantize(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Hugging Face folder or hub id, GGUF file, or package://module/file."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder for the checkpoint.")],
    method: Annotated[
        Literal["gptq", "awq", "int4", "int8"],
        typer.Option(help="gptq and awq, of 4 bits, are calibrated; int4 and int8 round to nearest."),
    ] = "gptq",
    form: Annotated[
        Literal["gptq", "awq", "compressed-tensors"] | None,
        typer.Option(
            "--format",
            help="What the checkpoint is written as; default the method's own, which for int4 is gptq and for int8 "
            "compressed-tensors.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text like those that the model will read, for gptq and awq."),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(help="Inputs with one scale: 128, 64 or 32; default the largest that suits the model.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Windows of the text that are read.")] = 64,
    window: Annotated[int, typer.Option(help="Tokens in one window.")] = 512,
    damping: Annotated[float, typer.Option(help="Share of the mean that gptq adds to the moments of inputs.")] = 0.01,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub id; default the main branch.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default all cores.")] = None,
) -> None:
    """Round a model's weights to 4 or 8 bits, once, into a checkpoint that this engine and others read."""
    require_extra("engine", ("torch", "transformers"))
    from pagefleet.engine.quantize.run import QuantizeOptions, run_quantize

    check_counts(("--samples", samples), ("--window", window))
    if threads is not None and threads < 1:
        raise UserMistake(f"--threads {threads} is too small: the smallest is 1, for example --threads 2.")
    options = QuantizeOptions(
        model=model,
        method=method,
        form=form,
        output=output,
        calibration=calibration,
        revision=revision,
        group_size=group_size,
        samples=samples,
        window_tokens=window,
        damping=damping,
        threads=threads,
    )
    run_measurement(lambda: run_quantize(options, typer.echo))
