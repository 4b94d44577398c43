"""Read a model's weights with the shapes that its configuration promises."""

from dataclasses import dataclass

import torch

from pagefleet.engine.checkpoint_format import PackedFormat
from pagefleet.engine.errors import StartupError
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.quantized import TorchInt8Linear
from pagefleet.engine.packed_weights import read_int8, read_packed
from pagefleet.engine.weights import Checkpoint

PREFIXES = ("model.", "", "language_model.model.", "model.language_model.")
"""Where checkpoints keep the decoder: saved with its head, without it, and inside a wrapper."""


@dataclass(frozen=True)
class WeightLoader:
    """Read weights in the compute dtype onto the device; every method raises StartupError."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    packed: PackedFormat | None = None
    """How layers are packed, where some are."""

    def prefix(self) -> str:
        """Return what the names of the decoder's weights begin with."""
        found = (prefix for prefix in PREFIXES if prefix + "embed_tokens.weight" in self.checkpoint)
        return next(found, PREFIXES[0])

    def weight(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return one weight in memory of its own: a view would keep all pages of its file in this process."""
        stored = self._stored(name, shape)
        weight = stored.to(device=self.device, dtype=self.dtype).contiguous()
        return weight.clone() if weight.data_ptr() == stored.data_ptr() else weight

    def norm(self, name: str, size: int, *, adds_one: bool) -> torch.Tensor:
        """Return a norm's [size] weight; one that is stored less 1 becomes float32, as `rms_norm` wants it."""
        if not adds_one:
            return self.weight(name, (size,))
        return self._stored(name, (size,)).to(device=self.device, dtype=torch.float32) + 1.0

    def linear(
        self, name: str, outputs: int, inputs: int, *, has_bias: bool, order: torch.Tensor | None = None
    ) -> Linear:
        """Return one linear layer, its outputs in the given order; one that is packed holds a kernel in torch."""
        bias = self.weight(name + ".bias", (outputs,)) if has_bias else None
        if order is not None:
            order = order.to(self.device)
            bias = None if bias is None else bias[order]
        if self.packed is not None and self.is_packed(name):
            if self.packed.bits == 8:
                integers = read_int8(self.checkpoint, name, outputs, inputs).to(self.device)
                integers = integers if order is None else integers.rows(order)
                return Linear(None, kernel=TorchInt8Linear(integers, bias, self.dtype))
            packed = read_packed(self.checkpoint, self.packed, name, outputs, inputs).to(self.device)
            packed = packed if order is None else packed.rows(order)
            return Linear(None, kernel=TorchInt4Linear(packed, bias, self.dtype))
        weight = self.weight(name + ".weight", (outputs, inputs))
        return Linear(weight if order is None else weight[order], bias)

    def is_packed(self, name: str) -> bool:
        """Tell whether a layer is stored in the packed form."""
        return self.packed is not None and f"{name}.{self.packed.marker}" in self.checkpoint

    def _stored(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self.checkpoint.tensor(name)
        if tuple(tensor.shape) != shape:
            raise StartupError(
                f"weight {name} has shape {tuple(tensor.shape)}, config.json says {shape}: the files do not belong "
                "together"
            )
        return tensor
