"""What the engine needs of a model, whoever computes it."""

from collections.abc import Iterator
from typing import Protocol

import torch

from pagefleet.engine.kernels.interface import LayerAttention, PagedAttention
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.norm import RmsNorm


class Model(Protocol):
    """Map tokens to logits over a paged cache."""

    implementation: str
    """Whose code computes it: `native` or `transformers`."""
    packed_method: str | None
    """What the checkpoint's packed layers were quantized with; None where all are plain."""
    rms_norm: RmsNorm
    """A back end may put its own here; one for weights of the compute dtype."""

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """Yield the linears that a back end may take over, each with its part of the model; none is an answer too.

        Parts are `qkv_proj`, `o_proj`, `gate_up_proj`, `down_proj` of each layer, and `lm_head` last.
        """

    @property
    def query_heads(self) -> int:
        """Return the query heads of each layer."""

    @property
    def kv_heads(self) -> int:
        """Return the heads of keys and values in each layer."""

    @property
    def head_dim(self) -> int:
        """Return the numbers in one head."""

    @property
    def layer_attention(self) -> tuple[LayerAttention, ...]:
        """Return how each layer attends; its length is the number of layers."""

    @property
    def vocabulary_size(self) -> int:
        """Return the width of the logits."""

    @property
    def context_length(self) -> int:
        """Return the longest sequence in tokens."""

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights; a tied head counts once, unless a back end holds a packed copy."""

    @property
    def activation_values_per_token(self) -> int:
        """Return how many numbers one token needs at once at the widest point of the model, logits aside."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        """Map [tokens] ids at [tokens] positions to [tokens, hidden] states; `attention` knows whose they are."""

    def forward_widest(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention
    ) -> torch.Tensor:
        """Compute as `forward` does, but perhaps fewer layers: enough to need as much memory at once as all of them."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [rows, hidden] states to float32 [rows, vocabulary]; callers pass only the rows that sample."""
