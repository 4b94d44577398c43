"""One layer of a decoder: its weights, and how they are read."""

from dataclasses import dataclass

import torch

from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.packed_fusion import fuse_linears
from pagefleet.engine.layers.rotary import full_width_order
from pagefleet.engine.models.decoder_description import DecoderDescription
from pagefleet.engine.models.weight_loader import WeightLoader


@dataclass(frozen=True, kw_only=True)
class DecoderLayer:
    """Hold one layer's weights; QKV and gate-up are fused. Norms that the family lacks are None."""

    input_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    """Of the query heads and of the key heads."""
    output: Linear
    attention_output_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    mlp_output_norm: torch.Tensor | None

    @property
    def linears(self) -> tuple[tuple[str, Linear], ...]:
        """Return the layer's linears with their parts."""
        return (
            ("qkv_proj", self.qkv),
            ("o_proj", self.output),
            ("gate_up_proj", self.gate_up),
            ("down_proj", self.down),
        )

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the layer's weights."""
        norms = [self.input_norm, self.attention_output_norm, self.mlp_norm, self.mlp_output_norm]
        norms += self.head_norms or ()
        return sum(norm.nbytes for norm in norms if norm is not None) + sum(linear.nbytes for _, linear in self.linears)


class LayerLoader:
    """Read layers as their description says; raises StartupError."""

    def __init__(self, load: WeightLoader, description: DecoderDescription) -> None:
        self._load = load
        self._description = description
        is_partial = description.rotary_dim < description.head_dim
        order = full_width_order(description.head_dim, description.rotary_dim) if is_partial else None
        self._head_order = None if order is None else torch.tensor(order)

    def load(self, prefix: str) -> DecoderLayer:
        """Read the layer whose weights' names begin so."""
        it = self._description
        before_mlp = "pre_feedforward" if it.has_output_norms else "post_attention"
        return DecoderLayer(
            input_norm=self._norm(prefix + "input_layernorm"),
            qkv=self._qkv(prefix + "self_attn."),
            head_norms=self._head_norms(prefix + "self_attn.") if it.has_head_norms else None,
            output=self._load.linear(
                prefix + "self_attn.o_proj",
                it.hidden_size,
                it.query_heads * it.head_dim,
                has_bias=it.has_output_bias,
            ),
            attention_output_norm=self._norm(prefix + "post_attention_layernorm") if it.has_output_norms else None,
            mlp_norm=self._norm(f"{prefix}{before_mlp}_layernorm"),
            gate_up=self._gate_up(prefix + "mlp."),
            down=self._load.linear(
                prefix + "mlp.down_proj", it.hidden_size, it.intermediate_size, has_bias=it.has_mlp_bias
            ),
            mlp_output_norm=self._norm(prefix + "post_feedforward_layernorm") if it.has_output_norms else None,
        )

    def _norm(self, name: str) -> torch.Tensor:
        it = self._description
        return self._load.norm(name + ".weight", it.hidden_size, adds_one=it.norms_add_one)

    def _head_norms(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        it = self._description
        query, key = (
            self._load.norm(f"{prefix}{name}_norm.weight", it.head_dim, adds_one=it.norms_add_one) for name in "qk"
        )
        return (query, key) if self._head_order is None else (query[self._head_order], key[self._head_order])

    def _qkv(self, prefix: str) -> Linear:
        it = self._description
        query, kv = it.query_heads * it.head_dim, it.kv_heads * it.head_dim
        if it.is_fused:
            order = self._rows(it.query_heads + it.kv_heads, it.kv_heads)
            return self._load.linear(
                prefix + "qkv_proj", query + 2 * kv, it.hidden_size, has_bias=it.has_qkv_bias, order=order
            )
        parts = [("q", query, self._rows(it.query_heads)), ("k", kv, self._rows(it.kv_heads)), ("v", kv, None)]
        return fuse_linears(
            [
                self._load.linear(f"{prefix}{name}_proj", rows, it.hidden_size, has_bias=it.has_qkv_bias, order=order)
                for name, rows, order in parts
            ]
        )

    def _gate_up(self, prefix: str) -> Linear:
        it = self._description
        is_gated = it.activation == "silu"
        if it.is_fused:
            fused = self._load.linear(
                prefix + "gate_up_proj", 2 * it.intermediate_size, it.hidden_size, has_bias=it.has_mlp_bias
            )
            return fuse_linears([fused], is_gated=is_gated)
        parts = [
            self._load.linear(f"{prefix}{name}_proj", it.intermediate_size, it.hidden_size, has_bias=it.has_mlp_bias)
            for name in ("gate", "up")
        ]
        return fuse_linears(parts, is_gated=is_gated)

    def _rows(self, rotated_heads: int, other_heads: int = 0) -> torch.Tensor | None:
        """Return the order of rows that makes a partial rotation one of whole heads; None leaves them."""
        if self._head_order is None:
            return None
        head_dim = self._description.head_dim
        heads = [self._head_order + head * head_dim for head in range(rotated_heads)]
        return torch.cat([*heads, torch.arange(rotated_heads * head_dim, (rotated_heads + other_heads) * head_dim)])
