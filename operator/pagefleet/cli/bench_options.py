"""What the commands of `pagefleet bench` share: their flags, and how settings and mistakes are handled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pagefleet.cli.engine_checks import find_mistakes
from pagefleet.cli.engine_command import ENGINE_MODULES
from pagefleet.cli.errors import UserMistake, require_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagefleet.engine.config import EngineConfig

BENCH_MODULES = (*ENGINE_MODULES, "tqdm")

Preset = Annotated[Literal["S", "M", "L"], typer.Option(help="Random model: 16M, 125M or 500M parameters.")]
Model = Annotated[str, typer.Option(help="Folder or hub id instead of a preset.", show_default=False)]
Requests = Annotated[int, typer.Option(help="Requests of the workload.")]
Dtype = Annotated[Literal["auto", "bfloat16", "float32"], typer.Option(help="Compute type of all engines.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of all engines; default all cores but one.")]
Rounds = Annotated[int, typer.Option(help="Turns of every engine.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Sequences in one step at most.")]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="Write a picture here (PNG).", metavar="FILE")]
BlockSize = Annotated[int | None, typer.Option(help="Tokens in one KV block; default 16, or 64 in a packed cache.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the report here.", metavar="FILE")]


def require_bench() -> None:
    """Stop with the sentence that names the extra when a package is missing."""
    require_extra("bench", BENCH_MODULES)


def bench_engine(**settings: Any) -> EngineConfig:
    """Return the engine's settings on the CPU; raises UserMistake when one is out of range."""
    from pagefleet.engine.config import EngineConfig, ServerConfig

    engine = EngineConfig(device="cpu", **settings)
    named = EngineConfig(device="cpu", **{**settings, "model": settings["model"] or "a preset"})
    if mistakes := find_mistakes(named, ServerConfig()):
        raise UserMistake(mistakes)
    return engine


def check_counts(*counts: tuple[str, int]) -> None:
    """Refuse numbers below 1, given with their flags; raises UserMistake."""
    if mistakes := [
        f"{flag} {value} is too small: the smallest is 1, for example {flag} 8." for flag, value in counts if value < 1
    ]:
        raise UserMistake(mistakes)


def parse_numbers(flag: str, text: str) -> list[int]:
    """Return the whole numbers of a list with commas; raises UserMistake."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserMistake(f"{flag} {text} is not a list of whole numbers: for example {flag} 1,8,64.") from error


def parse_names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def run_measurement(measure: Callable[[], object]) -> None:
    """Measure, with the engine's own sentences as the user's."""
    from pagefleet.engine.errors import RequestRefused, StartupError

    try:
        measure()
    except (StartupError, RequestRefused) as error:
        raise UserMistake(str(error)) from error
