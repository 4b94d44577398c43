"""Collect what calibration needs to know of the inputs of a layer's linears, in one pass."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class InputMoments:
    """Sum the products of a linear's inputs, [inputs, inputs], and their magnitudes, over tokens."""

    def __init__(self, inputs: int) -> None:
        self._products = torch.zeros(inputs, inputs)
        self._magnitudes = torch.zeros(inputs)
        self._tokens = 0

    def add(self, rows: torch.Tensor) -> None:
        """Add [tokens, inputs]."""
        self._products.addmm_(rows.T, rows)
        self._magnitudes += rows.abs().sum(0)
        self._tokens += len(rows)

    @property
    def products(self) -> torch.Tensor:
        """Return the mean products."""
        return self._products / self._tokens

    @property
    def magnitudes(self) -> torch.Tensor:
        """Return the mean magnitudes."""
        return self._magnitudes / self._tokens


@contextmanager
def collect_moments(linears: Mapping[str, nn.Linear]) -> Iterator[dict[str, InputMoments]]:
    """Yield the moments of linears by name, filled while they are called; those that get one tensor share theirs."""
    found: dict[str, InputMoments] = {}
    last: list[Any] = [None, ""]

    def observe(name: str) -> Callable[..., None]:
        def hook(linear: nn.Linear, arguments: tuple[torch.Tensor, ...]) -> None:
            rows = arguments[0]
            if rows is last[0]:
                found.setdefault(name, found[last[1]])
                return
            last[:] = rows, name
            found.setdefault(name, InputMoments(linear.in_features)).add(rows.flatten(0, -2))

        return hook

    handles = [linear.register_forward_pre_hook(observe(name)) for name, linear in linears.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
