"""How a checkpoint says that its weights are packed in 4 or 8 bits: `quantization_config` of config.json, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pagefleet.engine.errors import StartupError

DEFAULTS = {"type": "int", "symmetric": True}
"""What compressed-tensors leaves out."""

METHODS = ("gptq", "awq", "compressed-tensors")
"""Words of `quant_method` that this engine reads."""


@dataclass(frozen=True, kw_only=True)
class PackedFormat:
    """Say how packed weights are to be read."""

    method: str
    bits: int = 4
    group_size: int | None
    """Inputs with one scale; None is all of a layer's."""
    marker: str
    """Name of the tensor, behind the layer's, that holds the numbers of a packed layer."""
    zero_offset: int = 0
    """What is added to stored zero points: GPTQ's first format stores them less 1."""
    is_reordered: bool = False
    """Inputs belong to groups that a tensor names (act-order)."""
    is_symmetric: bool = False
    """There are no zero points: 8 stands for 0."""


def packed_format(quantization_config: Any) -> PackedFormat | None:
    """Return how the weights are packed; None for a checkpoint that is not quantized. Raises StartupError."""
    if quantization_config is None:
        return None
    told: dict[str, Any] = (
        dict(quantization_config) if isinstance(quantization_config, Mapping) else quantization_config.to_dict()
    )
    method = str(told.get("quant_method") or "unknown").lower()
    reader = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors}.get(method)
    if reader is None:
        raise StartupError(
            f"the checkpoint is quantized with {method} (quant_method in config.json), which is not read; "
            f"use one quantized with {', '.join(METHODS)}, or the plain one with --quantization int4"
        )
    return reader(told)


def _gptq(told: Mapping[str, Any]) -> PackedFormat:
    _check_bits("gptq", told.get("bits"))
    stored = str(told.get("checkpoint_format") or "gptq")
    if stored not in ("gptq", "gptq_v2"):
        raise StartupError(
            f"checkpoint_format {stored} of this GPTQ checkpoint is not read; use one in the format gptq or gptq_v2"
        )
    return PackedFormat(
        method="gptq",
        group_size=_group_size(told.get("group_size", 128)),
        marker="qweight",
        zero_offset=1 if stored == "gptq" else 0,
        is_reordered=bool(told.get("desc_act")),
    )


def _awq(told: Mapping[str, Any]) -> PackedFormat:
    _check_bits("awq", told.get("bits", told.get("w_bit", 4)))
    version = str(told.get("version") or "gemm").lower()
    if version != "gemm":
        raise StartupError(f"version {version} of this AWQ checkpoint is not read; use one packed with version gemm")
    group_size = told.get("group_size", told.get("q_group_size", 128))
    return PackedFormat(method="awq", group_size=_group_size(group_size), marker="qweight")


def _compressed_tensors(told: Mapping[str, Any]) -> PackedFormat:
    schemes = [scheme for scheme in (told.get("config_groups") or {}).values() if isinstance(scheme, Mapping)]
    weights = [dict(scheme.get("weights") or {}) for scheme in schemes]
    stored = str(told.get("format") or "unknown")
    if stored == "int-quantized" and weights:
        return _eight_bits(schemes, weights)
    if stored != "pack-quantized" or not weights or any(one.get("type", "int") != "int" for one in weights):
        raise StartupError(
            f"format {stored} of this compressed-tensors checkpoint is not read; use one with integers in the format "
            "pack-quantized (scheme W4A16) or int-quantized (W8A8)"
        )
    if any(scheme.get("input_activations") for scheme in schemes):
        raise StartupError(
            "this compressed-tensors checkpoint also quantizes activations (input_activations), which is not read; "
            "use one made with scheme W4A16"
        )
    for one in weights:
        _check_bits("compressed-tensors", one.get("num_bits"))
    if any(one != weights[0] for one in weights):
        raise StartupError(
            f"the {len(weights)} config_groups of this compressed-tensors checkpoint differ, which is not read; use "
            "one with a single scheme for all layers"
        )
    return PackedFormat(
        method="compressed-tensors",
        group_size=_group_size(weights[0].get("group_size") or -1),
        marker="weight_packed",
        is_reordered=weights[0].get("actorder") in (True, "group"),
        is_symmetric=bool(weights[0].get("symmetric", True)),
    )


def _eight_bits(schemes: Sequence[Mapping[str, Any]], weights: Sequence[Mapping[str, Any]]) -> PackedFormat:
    """Return the format of 8-bit weights by output; inputs are rounded as they come, as the engine always does."""
    inputs = [dict(scheme.get("input_activations") or {}) for scheme in schemes]
    by_output = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    as_they_come = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    for name, ones, wanted in (("weights", weights, by_output), ("input_activations", inputs, as_they_come)):
        for one, (key, value) in product(ones, wanted.items()):
            if one.get(key, DEFAULTS.get(key)) != value:
                raise StartupError(
                    f"{name} of this compressed-tensors checkpoint have {key} {one.get(key)}, and with int-quantized "
                    f"{value} is read; use one made with scheme W8A8 and dynamic activations"
                )
    return PackedFormat(method="compressed-tensors", bits=8, group_size=None, marker="weight_scale", is_symmetric=True)


def _check_bits(method: str, bits: Any) -> None:
    if bits != 4:
        raise StartupError(
            f"the checkpoint is quantized with {method} to {bits} bits, and this engine reads 4; use such a one, or "
            "the plain one with --quantization int8"
        )


def _group_size(value: Any) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or value == 0 or value < -1:
        raise StartupError(f"group_size {value} in config.json is no number of inputs; it must be -1, 32, 64 or 128")
    return None if value == -1 else value
