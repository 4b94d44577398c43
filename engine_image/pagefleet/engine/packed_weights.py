"""Read the packed layers of published checkpoints: those of 4 bits as `layers/int4.py` says, and those of 8.

4-bit formats hold 8 numbers in an int32, the first in the lowest bits. GPTQ packs along the inputs,
[inputs / 8, outputs]; AWQ along the outputs, [inputs, outputs / 8], with outputs 0 2 4 6 1 3 5 7 in a word;
compressed-tensors along the inputs, [outputs, inputs / 8], numbers and zero points plus 8. Zero points of the first two
are packed along the outputs.
"""

from itertools import pairwise
from math import gcd

import torch

from pagefleet.engine.checkpoint_format import PackedFormat
from pagefleet.engine.errors import StartupError
from pagefleet.engine.layers.int4 import LEVELS, PER_WORD, Int4Weight, pack_numbers, unpack_words
from pagefleet.engine.layers.quantized import QuantizedWeight
from pagefleet.engine.weights import Checkpoint

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word AWQ keeps each of 8 neighbouring outputs."""

MIDDLE = 8
"""The number that stands for 0 where there are no zero points."""


def read_packed(checkpoint: Checkpoint, form: PackedFormat, name: str, outputs: int, inputs: int) -> Int4Weight:
    """Return the packed layer of that name; raises StartupError when its tensors are not what config.json says."""
    if inputs % PER_WORD or outputs % PER_WORD:
        raise StartupError(
            f"layer {name} is packed in 4 bits, but its {outputs} outputs and {inputs} inputs are no multiples of "
            f"{PER_WORD}: the files do not fit config.json"
        )
    return _Layer(checkpoint, form, name, outputs, inputs).read()


def read_int8(checkpoint: Checkpoint, name: str, outputs: int, inputs: int) -> QuantizedWeight:
    """Return the 8-bit layer of that name; raises StartupError when its tensors are not what config.json says."""
    integers, scales = (checkpoint.tensor(f"{name}.{part}") for part in ("weight", "weight_scale"))
    if integers.dtype != torch.int8 or tuple(integers.shape) != (outputs, inputs):
        raise StartupError(
            f"weight {name}.weight holds {integers.dtype} {tuple(integers.shape)}, and config.json says torch.int8 "
            f"{(outputs, inputs)}: the files do not belong together"
        )
    if not scales.is_floating_point() or tuple(scales.shape) not in ((outputs, 1), (outputs,)):
        raise StartupError(
            f"weight {name}.weight_scale holds {scales.dtype} {tuple(scales.shape)}, not a float for each of "
            f"{outputs} outputs: the files do not fit config.json"
        )
    return QuantizedWeight(integers, scales.float().flatten())


class _Layer:
    """One packed layer of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, form: PackedFormat, name: str, outputs: int, inputs: int) -> None:
        self._checkpoint = checkpoint
        self._form = form
        self._name = name
        self._outputs, self._inputs = outputs, inputs
        self._groups = -(-inputs // (form.group_size or inputs))

    def read(self) -> Int4Weight:
        """Return the weight."""
        words, scales, zeros = {"gptq": self._gptq, "awq": self._awq, "compressed-tensors": self._compressed_tensors}[
            self._form.method
        ]()
        return _with_even_groups(words, scales.float(), zeros.to(torch.uint8), self._group_of_inputs())

    def _gptq(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        words = self._integers("qweight", (self._inputs // PER_WORD, self._outputs)).T.contiguous()
        zeros = unpack_words(self._integers("qzeros", (self._groups, self._outputs // PER_WORD)))
        return words, self._scales("scales", is_transposed=True), zeros.T + self._form.zero_offset

    def _awq(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        width = self._outputs // PER_WORD
        numbers = _unpack_awq(self._integers("qweight", (self._inputs, width)))
        zeros = _unpack_awq(self._integers("qzeros", (self._groups, width)))
        return pack_numbers(numbers.T), self._scales("scales", is_transposed=True), zeros.T

    def _compressed_tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        words = self._integers("weight_packed", (self._outputs, self._inputs // PER_WORD))
        scales = self._scales("weight_scale", is_transposed=False)
        if self._form.is_symmetric:
            return words, scales, torch.full_like(scales, MIDDLE)
        zeros = self._integers("weight_zero_point", (self._outputs // PER_WORD, self._groups))
        return words, scales, unpack_words(zeros.T).T

    def _group_of_inputs(self) -> torch.Tensor:
        """Return the [inputs] group that each input belongs to."""
        name = "weight_g_idx" if self._form.method == "compressed-tensors" else "g_idx"
        if self._form.method == "awq" or (
            f"{self._name}.{name}" not in self._checkpoint and not self._form.is_reordered
        ):
            return torch.arange(self._inputs) // (self._form.group_size or self._inputs)
        groups = self._tensor(name, (self._inputs,)).long()
        if bool(((groups < 0) | (groups >= self._groups)).any()):
            raise StartupError(
                f"weight {self._name}.{name} names groups {int(groups.min())} to {int(groups.max())}, but there are "
                f"only 0 to {self._groups - 1}: the file is damaged, download it again"
            )
        return groups

    def _scales(self, name: str, *, is_transposed: bool) -> torch.Tensor:
        shape = (self._groups, self._outputs) if is_transposed else (self._outputs, self._groups)
        scales = self._tensor(name, shape)
        if not scales.is_floating_point():
            raise StartupError(f"weight {self._name}.{name} holds {scales.dtype}, not floats: the file is damaged")
        return scales.T if is_transposed else scales

    def _integers(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensor(name, shape)
        if tensor.dtype != torch.int32:
            raise StartupError(
                f"weight {self._name}.{name} holds {tensor.dtype}, and this engine reads torch.int32; "
                "pack the checkpoint with pack_dtype int32"
            )
        return tensor

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        whole = f"{self._name}.{name}"
        if whole not in self._checkpoint:
            raise StartupError(
                f"weight {whole} is missing beside {self._name}.{self._form.marker}: {self._form.method} needs it; "
                "is the download complete?"
            )
        tensor = self._checkpoint.tensor(whole)
        if tuple(tensor.shape) != shape:
            group = self._form.group_size or self._inputs
            raise StartupError(
                f"weight {whole} has shape {tuple(tensor.shape)}, but a layer of {self._outputs} outputs and "
                f"{self._inputs} inputs with 4 bits and groups of {group} has {shape}: the files do not fit config.json"
            )
        return tensor


def _unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """Return the [rows, outputs] numbers of [rows, outputs / 8] words."""
    shifts = 4 * torch.tensor(AWQ_PLACES, dtype=torch.int32)
    numbers: torch.Tensor = (words[..., None] >> shifts) & LEVELS
    return numbers.to(torch.uint8).flatten(-2)


def _with_even_groups(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_of_inputs: torch.Tensor
) -> Int4Weight:
    """Put inputs of one group side by side, in groups of one size: the largest that divides all."""
    order: torch.Tensor | None = None
    if bool((group_of_inputs.diff() < 0).any()):
        order = group_of_inputs.argsort(stable=True)
        group_of_inputs = group_of_inputs[order]
        words = pack_numbers(unpack_words(words)[:, order])
    edges = [0, *(group_of_inputs.diff().nonzero().flatten() + 1).tolist(), len(group_of_inputs)]
    group = gcd(*(after - before for before, after in pairwise(edges)))
    which = group_of_inputs[::group]
    return Int4Weight(words, scales[:, which].contiguous(), zeros[:, which].contiguous(), order)
