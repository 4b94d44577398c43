"""Which weights are rounded: names and their checks, without anything that computes."""

from collections.abc import Collection

from pagefleet.engine.errors import StartupError

QUANTIZATIONS = ("none", "int8", "int4")
"""What the engine makes of plain weights as it loads them; int8 on a CPU alone."""

MADE_BEFORE = ("gptq", "awq")
"""What only a checkpoint can bring: the word says that it must."""

PARTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
"""Parts of a model that hold its linears, as `Model.linears` names them."""


def check_quantization(
    name: str, ignored: Collection[str], *, flag: str = "--quantization", ignore_flag: str = "--quantization-ignore"
) -> None:
    """Refuse a quantization that is unknown, and parts that no model has or that are all there are; StartupError."""
    if name not in (*QUANTIZATIONS, *MADE_BEFORE):
        raise StartupError(f"{flag} {name} is unknown; use {', '.join(QUANTIZATIONS[:-1])} or {QUANTIZATIONS[-1]}")
    for part in ignored:
        if part not in PARTS:
            raise StartupError(f"{ignore_flag} {part} names no part of a model; use {', '.join(PARTS)}")
    if set(ignored) >= set(PARTS):
        raise StartupError(f"{ignore_flag} {','.join(ignored)} leaves nothing to round; use lm_head")


def check_checkpoint(name: str, stored: str | None) -> str:
    """Return how weights are kept, by the flag and by what is stored; raises StartupError where they differ."""
    if stored is None:
        if name in MADE_BEFORE:
            raise StartupError(
                f"--quantization {name}: config.json names no quantization_config, so the checkpoint is not quantized; "
                f"use --quantization int4, or a {name} checkpoint"
            )
        return name
    if name not in ("none", stored):
        raise StartupError(
            f"--quantization {name}: the checkpoint is quantized with {stored} already; use --quantization none"
        )
    return stored
