"""Decoders of the Llama kind: norm, attention, norm, gated feed-forward; what families vary is an option.

Names and order of operations are those of transformers' models, so that float32 tokens are equal.
"""

import torch

from pagefleet.engine.kernels.interface import LayerAttention, PagedAttention
from pagefleet.engine.layers.activation import ACTIVATIONS
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.norm import rms_norm
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.decoder_layer import DecoderLayer, LayerLoader
from pagefleet.engine.models.weight_loader import WeightLoader
from pagefleet.engine.weights import Checkpoint


class DecoderModel:
    """Compute hidden states and logits of a mixed batch."""

    def __init__(
        self, description: DecoderDescription, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        description.check()
        self._description = description
        self._dtype = dtype
        self._activation = ACTIVATIONS[description.activation]
        on_device = {rotary: rotary.to(device) for rotary in description.rotary}
        self._rotary = [on_device[rotary] for rotary in description.rotary]
        load = WeightLoader(checkpoint, dtype, device)
        prefix, hidden = load.prefix(), description.hidden_size
        self._embedding = load.weight(prefix + "embed_tokens.weight", (description.vocabulary_size, hidden))
        layers = LayerLoader(load, description)
        self._layers = [layers.load(f"{prefix}layers.{index}.") for index in range(len(description.attention))]
        self._final_norm = load.norm(prefix + "norm.weight", hidden, adds_one=description.norms_add_one)
        self._head = self._load_head(load)

    @property
    def query_heads(self) -> int:
        """Return the query heads of each layer."""
        return self._description.query_heads

    @property
    def kv_heads(self) -> int:
        """Return the heads of keys and values in each layer."""
        return self._description.kv_heads

    @property
    def head_dim(self) -> int:
        """Return the numbers in one head."""
        return self._description.head_dim

    @property
    def layer_attention(self) -> tuple[LayerAttention, ...]:
        """Return how each layer attends."""
        return self._description.attention

    @property
    def vocabulary_size(self) -> int:
        """Return the width of the logits."""
        return self._description.vocabulary_size

    @property
    def context_length(self) -> int:
        """Return the longest sequence in tokens."""
        return self._description.context_length

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights; a tied head counts once."""
        tensors = [self._embedding, self._final_norm]
        if self._head.weight is not self._embedding:
            tensors.append(self._head.weight)
        return sum(tensor.nbytes for tensor in tensors) + sum(layer.weight_bytes for layer in self._layers)

    @property
    def activation_values_per_token(self) -> int:
        """Return how many numbers one token needs at once at the widest point of a layer."""
        it = self._description
        qkv = (it.query_heads + 2 * it.kv_heads) * it.head_dim
        attention = 3 * it.hidden_size + 3 * qkv
        mlp = 3 * it.hidden_size + 4 * it.intermediate_size
        return max(attention, mlp)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        """Map [tokens] ids at [tokens] positions to [tokens, hidden] states before the final norm."""
        tables = {rotary: rotary.table(positions, self._dtype) for rotary in set(self._rotary)}
        epsilon = self._description.norm_epsilon
        hidden = torch.nn.functional.embedding(token_ids, self._embedding)
        if self._description.embedding_scale is not None:
            hidden = hidden * torch.tensor(self._description.embedding_scale, dtype=self._dtype)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(rms_norm(hidden, layer.input_norm, epsilon))
            if layer.head_norms is not None:
                self._normalise_heads(qkv, layer.head_norms)
            attended = layer.output(attention.forward(index, qkv, tables[self._rotary[index]]))
            hidden = hidden + _normed(attended, layer.attention_output_norm, epsilon)
            hidden = hidden + _normed(self._feed_forward(layer, hidden), layer.mlp_output_norm, epsilon)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [rows, hidden] to float32 [rows, vocabulary]; callers pass only the rows that sample."""
        normed = rms_norm(hidden, self._final_norm, self._description.norm_epsilon)
        logits = self._head(normed).float()
        cap = self._description.logit_soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _feed_forward(self, layer: DecoderLayer, hidden: torch.Tensor) -> torch.Tensor:
        normed = rms_norm(hidden, layer.mlp_norm, self._description.norm_epsilon)
        gate, up = layer.gate_up(normed).chunk(2, dim=-1)
        return layer.down(self._activation(gate) * up)

    def _normalise_heads(self, qkv: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Normalise query and key heads where they lie."""
        it = self._description
        heads = qkv.view(qkv.shape[0], -1, it.head_dim)
        start = 0
        for count, weight in zip((it.query_heads, it.kv_heads), weights, strict=True):
            part = heads[:, start : start + count]
            part.copy_(rms_norm(part, weight, it.norm_epsilon))
            start += count

    def _load_head(self, load: WeightLoader) -> Linear:
        """Return the head; a tied one is the embedding unless the checkpoint says otherwise."""
        ties = self._description.ties_head
        if ties and "lm_head.weight" not in load.checkpoint:
            return Linear(self._embedding)
        head = load.weight("lm_head.weight", tuple(self._embedding.shape))
        return Linear(self._embedding if ties and torch.equal(head, self._embedding) else head)


def _normed(rows: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    return rows if weight is None else rms_norm(rows, weight, epsilon)
