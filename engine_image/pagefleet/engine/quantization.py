"""Which weights are rounded: names and their checks, without anything that computes."""

from collections.abc import Collection

from pagefleet.engine.errors import StartupError

QUANTIZATIONS = ("none", "int8", "int4")
"""All but `none` on a CPU alone."""

PARTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
"""Parts of a model that hold its linears, as `Model.linears` names them."""


def check_quantization(
    name: str, ignored: Collection[str], *, flag: str = "--quantization", ignore_flag: str = "--quantization-ignore"
) -> None:
    """Refuse a quantization that is unknown, and parts that no model has or that are all there are; StartupError."""
    if name not in QUANTIZATIONS:
        raise StartupError(f"{flag} {name} is unknown; use {', '.join(QUANTIZATIONS[:-1])} or {QUANTIZATIONS[-1]}")
    for part in ignored:
        if part not in PARTS:
            raise StartupError(f"{ignore_flag} {part} names no part of a model; use {', '.join(PARTS)}")
    if set(ignored) >= set(PARTS):
        raise StartupError(f"{ignore_flag} {','.join(ignored)} leaves nothing to round; use lm_head")
