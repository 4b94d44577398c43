"""The formats that quantized checkpoints are published in: what each layer's tensors are, and what config.json says."""

from collections.abc import Mapping
from typing import Any

import torch

from pagefleet.engine.layers.quantized import QuantizedWeight
from pagefleet.engine.quantize.rounded import RoundedLinear, awq_tensors, compressed_tensors, gptq_tensors

COMPRESSED = "compressed-tensors"

FORMATS_OF: Mapping[str, tuple[str, ...]] = {
    "gptq": ("gptq", COMPRESSED),
    "awq": ("awq", COMPRESSED),
    "int4": ("gptq", COMPRESSED),
    "int8": (COMPRESSED,),
}
"""Which formats can hold what a method makes; the first is what is written unless another is asked for."""

KEPT = ["lm_head"]


def tensors_of(rounded: RoundedLinear | QuantizedWeight, form: str) -> dict[str, torch.Tensor]:
    """Return a layer's tensors, by what follows its name."""
    if isinstance(rounded, QuantizedWeight):
        return {"weight": rounded.integers, "weight_scale": rounded.scales[:, None]}
    return {"gptq": gptq_tensors, "awq": awq_tensors, COMPRESSED: compressed_tensors}[form](rounded)


def quantization_config(form: str, group: int | None, damping: float) -> dict[str, Any]:
    """Return what config.json says of the weights; without a group they have 8 bits and a scale for each output."""
    if form == COMPRESSED:
        return _compressed(_W8A8 if group is None else _w4a16(group))
    if form == "awq":
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": KEPT,
        }
    return {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group,
        "damp_percent": damping,
        "desc_act": False,
        "sym": False,
        "true_sequential": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
    }


_INTEGERS = {"type": "int", "num_bits": 8, "symmetric": True}

_W8A8 = {
    "format": "int-quantized",
    "weights": {**_INTEGERS, "strategy": "channel", "dynamic": False},
    "input_activations": {**_INTEGERS, "strategy": "token", "dynamic": True},
}


def _w4a16(group: int) -> dict[str, Any]:
    weights = {"type": "int", "num_bits": 4, "symmetric": False, "strategy": "group", "group_size": group}
    return {"format": "pack-quantized", "weights": weights}


_READER_SETTINGS = {"pack-quantized": {"dequantize": True}}
"""What transformers is told: it cannot keep weights packed that have zero points."""


def _compressed(scheme: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": COMPRESSED,
        "format": scheme["format"],
        **_READER_SETTINGS.get(scheme["format"], {}),
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], **scheme}},
        "ignore": KEPT,
    }
