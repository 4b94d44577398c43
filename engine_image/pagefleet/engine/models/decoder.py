"""Decoders of the Llama kind: norm, attention, norm, gated feed-forward; what families vary is an option.

Names and order of operations are those of transformers' models, so that float32 tokens are equal.
"""

from collections.abc import Callable, Iterable, Iterator

import torch

from pagefleet.engine.checkpoint_format import PackedFormat
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.interface import LayerAttention, PagedAttention
from pagefleet.engine.layers.activation import ACTIVATIONS
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.norm import RmsNorm, rms_norm
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.decoder_layer import DecoderLayer, LayerLoader
from pagefleet.engine.models.weight_loader import WeightLoader
from pagefleet.engine.weights import Checkpoint

PrepareLinear = Callable[[str, Linear], None]
"""Take a linear with its part of the model as soon as its layer is loaded, to round it before the next one comes."""


class DecoderModel:
    """Compute hidden states and logits of a mixed batch."""

    implementation = "native"

    def __init__(
        self,
        description: DecoderDescription,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        packed: PackedFormat | None = None,
        prepare: PrepareLinear | None = None,
    ) -> None:
        description.check()
        self.rms_norm: RmsNorm = rms_norm
        self.packed_method = None if packed is None else packed.method
        self._description = description
        self._dtype = dtype
        self._activation = ACTIVATIONS[description.activation]
        on_device = {rotary: rotary.to(device) for rotary in description.rotary}
        self._rotary = [on_device[rotary] for rotary in description.rotary]
        load = WeightLoader(checkpoint, dtype, device, packed)
        prefix, hidden = load.prefix(), description.hidden_size
        self._embedding = load.weight(prefix + "embed_tokens.weight", (description.vocabulary_size, hidden))
        layers = LayerLoader(load, description)
        self._layers: list[DecoderLayer] = []
        for index in range(len(description.attention)):
            layer = layers.load(f"{prefix}layers.{index}.")
            if prepare is not None:
                for part, linear in layer.linears:
                    prepare(part, linear)
            self._layers.append(layer)
        self._final_norm = load.norm(prefix + "norm.weight", hidden, adds_one=description.norms_add_one)
        self._head = self._load_head(load)
        if packed is not None and not any(each.kernel is not None for _, each in self.linears()):
            raise StartupError(
                f"config.json says that the weights are quantized with {packed.method}, but no layer has a "
                f"{packed.marker}: take quantization_config out of config.json, or download the files again"
            )

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
        """Return the bytes of all weights; a tied head counts once, unless a back end holds a packed copy."""
        head = 0 if self._head.weight is self._embedding else self._head.nbytes
        own = self._embedding.nbytes + self._final_norm.nbytes + head
        return own + sum(layer.weight_bytes for layer in self._layers)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """Yield all linears with their parts, the head last, for a back end to take over."""
        for layer in self._layers:
            yield from layer.linears
        yield "lm_head", self._head

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
        return self._forward(token_ids, positions, attention, range(len(self._layers)))

    def forward_widest(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention
    ) -> torch.Tensor:
        """Compute the first layer of each kind: they differ in how they attend alone."""
        kinds = {kind: layer for layer, kind in reversed(list(enumerate(self.layer_attention)))}
        return self._forward(token_ids, positions, attention, sorted(kinds.values()))

    def _forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention, layers: Iterable[int]
    ) -> torch.Tensor:
        tables = {rotary: rotary.table(positions, self._dtype) for rotary in set(self._rotary)}
        hidden = torch.nn.functional.embedding(token_ids, self._embedding)
        if self._description.embedding_scale is not None:
            hidden = hidden * torch.tensor(self._description.embedding_scale, dtype=self._dtype)
        for index in layers:
            layer = self._layers[index]
            qkv = layer.qkv(self._normalise(hidden, layer.input_norm))
            if layer.head_norms is not None:
                self._normalise_heads(qkv, layer.head_norms)
            attended = attention.forward(index, qkv, tables[self._rotary[index]])
            hidden = self._add(hidden, layer.output, attended, layer.attention_output_norm)
            gated = self._gate(layer, self._normalise(hidden, layer.mlp_norm))
            hidden = self._add(hidden, layer.down, gated, layer.mlp_output_norm)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [rows, hidden] to float32 [rows, vocabulary]; callers pass only the rows that sample."""
        logits = self._head.wide(self._normalise(hidden, self._final_norm))
        cap = self._description.logit_soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _gate(self, layer: DecoderLayer, rows: torch.Tensor) -> torch.Tensor:
        if layer.gate_up.is_gated:
            return layer.gate_up.swiglu(rows)
        gate, up = layer.gate_up(rows).chunk(2, dim=-1)
        return self._activation(gate) * up

    def _add(self, hidden: torch.Tensor, linear: Linear, rows: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """Return `hidden` plus what the linear makes of `rows`, normalised where the family does that."""
        return linear.add_to(hidden, rows) if norm is None else hidden + self._normalise(linear(rows), norm)

    def _normalise(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # Kernels take weights of the compute dtype alone.
        normalise = self.rms_norm if weight.dtype == hidden.dtype else rms_norm
        return normalise(hidden, weight, self._description.norm_epsilon)

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
        if load.is_packed("lm_head"):
            return load.linear("lm_head", *self._embedding.shape, has_bias=False)
        if ties and "lm_head.weight" not in load.checkpoint:
            return Linear(self._embedding)
        head = load.weight("lm_head.weight", tuple(self._embedding.shape))
        return Linear(self._embedding if ties and torch.equal(head, self._embedding) else head)
