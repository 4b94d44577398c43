"""Pack tiny checkpoints as GPTQ, AWQ and compressed-tensors publish them, beside the floats that they stand for.

Written from the formats' descriptions alone, with numpy, and sharing nothing with the engine.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of 8 neighbouring outputs lies at each place of an AWQ word, the lowest bits first."""

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Layer:
    """A quantized layer: (numbers - zeros) * scales."""

    numbers: Numbers
    """[outputs, inputs], 0 to 15."""
    scales: Numbers
    """[outputs, groups], float16."""
    zeros: Numbers
    """[outputs, groups]."""
    group_of_inputs: Numbers
    """[inputs]."""

    def values(self) -> torch.Tensor:
        """Return the float32 weight."""
        scales = self.scales.astype(np.float32)[:, self.group_of_inputs]
        return torch.from_numpy((self.numbers - self.zeros[:, self.group_of_inputs]).astype(np.float32) * scales)


def random_layer(
    outputs: int, inputs: int, group: int, *, symmetric: bool = False, reordered: bool = False, seed: int = 0
) -> Layer:
    """Return random numbers of a sensible size; `group` -1 is one for all inputs."""
    generator = np.random.default_rng(seed)
    groups = 1 if group == -1 else -(-inputs // group)
    members = np.zeros(inputs, np.int32) if group == -1 else np.arange(inputs, dtype=np.int32) // group
    return Layer(
        numbers=generator.integers(0, 16, (outputs, inputs)),
        scales=(generator.uniform(0.5, 1.5, (outputs, groups)) * 0.04).astype(np.float16),
        zeros=np.full((outputs, groups), 8) if symmetric else generator.integers(1, 16, (outputs, groups)),
        group_of_inputs=generator.permutation(members) if reordered else members,
    )


def words_of(numbers: Numbers, places: Collection[int] = range(8)) -> Numbers:
    """Pack 8 neighbours of the last dimension into an int32; place p, at bits 4 p, holds neighbour places[p]."""
    words = np.zeros((*numbers.shape[:-1], numbers.shape[-1] // 8), np.uint32)
    for place, neighbour in enumerate(places):
        words |= numbers[..., neighbour::8].astype(np.uint32) << np.uint32(4 * place)
    return words.view(np.int32)


def gptq_tensors(layer: Layer, *, less: int = 1) -> dict[str, Numbers]:
    """Return a layer's GPTQ tensors; zero points are stored `less` 1, or 0 in gptq_v2."""
    return {
        "qweight": words_of(layer.numbers).T,
        "qzeros": words_of((layer.zeros - less).T),
        "scales": layer.scales.T,
        "g_idx": layer.group_of_inputs.astype(np.int32),
    }


def awq_tensors(layer: Layer) -> dict[str, Numbers]:
    """Return a layer's AWQ tensors."""
    return {
        "qweight": words_of(layer.numbers.T, AWQ_OUTPUTS),
        "qzeros": words_of(layer.zeros.T, AWQ_OUTPUTS),
        "scales": layer.scales.T,
    }


def compressed_tensors(layer: Layer, *, symmetric: bool = True) -> dict[str, Numbers]:
    """Return a layer's tensors in the format pack-quantized."""
    tensors: dict[str, Numbers] = {
        "weight_packed": words_of(layer.numbers),
        "weight_scale": layer.scales,
        "weight_shape": np.array(layer.numbers.shape, np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words_of(layer.zeros.T).T
    return tensors


def pack_checkpoint(
    plain: Path,
    folder: Path,
    make: Callable[[str, int, int], tuple[Layer, dict[str, Numbers]] | None],
    config: dict[str, Any],
) -> tuple[Path, Path]:
    """Replace linears of a plain checkpoint and return folders: packed ones, and the floats that they stand for.

    `make` gets a layer's name, outputs and inputs; what it returns None for stays as it is.
    """
    told = json.loads((plain / "config.json").read_text())
    packed, floats = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        made = make(layer, *tensor.shape) if "proj" in layer or layer == "lm_head" else None
        packed[name] = floats[name] = tensor
        if made is not None:
            del packed[name]
            floats[name] = made[0].values()
            for suffix, numbers in made[1].items():
                packed[f"{layer}.{suffix}"] = torch.from_numpy(np.ascontiguousarray(numbers))
    for part, tensors, extra in (("packed", packed, {"quantization_config": config}), ("floats", floats, {})):
        (folder / part).mkdir(parents=True)
        save_file(tensors, folder / part / "model.safetensors", metadata={"format": "pt"})
        (folder / part / "config.json").write_text(json.dumps({**told, **extra}))
    return folder / "packed", folder / "floats"
