"""The Llama family (arXiv 2302.13971): RMS norm, rotary positions, grouped-query attention, SwiGLU.

Names and order of operations are transformers' `LlamaForCausalLM`, so that float32 tokens are equal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.interface import PagedAttention
from pagefleet.engine.layers.linear import Linear, fuse
from pagefleet.engine.layers.norm import RmsNorm, rms_norm
from pagefleet.engine.layers.rotary import RotaryTable
from pagefleet.engine.weights import Checkpoint

STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotations that do not change with the length of the sequence, so that cached keys stay right."""


@dataclass(frozen=True)
class LlamaLayer:
    """Hold one layer's weights; QKV and gate-up are fused."""

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Compute hidden states and logits of a mixed batch."""

    def __init__(self, config: Any, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self.layers_count: int = config.num_hidden_layers
        self.query_heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads or config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.query_heads
        self.hidden_size: int = config.hidden_size
        self.intermediate_size: int = config.intermediate_size
        self.vocabulary_size: int = config.vocab_size
        self.context_length: int = config.max_position_embeddings
        self._epsilon: float = config.rms_norm_eps
        self.rms_norm: RmsNorm = rms_norm  # a back end may put its own here
        self._check(config)
        load = _Loader(checkpoint, dtype, device)
        self._inverse_frequencies, self._rotary_scale = _rotary_parameters(config, self.head_dim, device)
        self._dtype = dtype
        self._embedding = load.weight("model.embed_tokens.weight", (self.vocabulary_size, self.hidden_size))
        self._layers = [self._load_layer(load, f"model.layers.{i}.", config) for i in range(self.layers_count)]
        self._final_norm = load.weight("model.norm.weight", (self.hidden_size,))
        is_tied = config.tie_word_embeddings or "lm_head.weight" not in checkpoint
        self._head = Linear(
            self._embedding if is_tied else load.weight("lm_head.weight", (self.vocabulary_size, self.hidden_size))
        )

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights; a tied head counts once, unless a back end holds a packed copy."""
        norms = [self._final_norm, *(norm for layer in self._layers for norm in (layer.input_norm, layer.mlp_norm))]
        linears = [linear for linear in self.linears() if linear.weight is not self._embedding]
        return self._embedding.nbytes + sum(each.nbytes for each in norms) + sum(each.nbytes for each in linears)

    def linears(self) -> Iterator[Linear]:
        """Yield all linears, the head last, for a back end to take over."""
        for layer in self._layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)
        yield self._head

    @property
    def activation_values_per_token(self) -> int:
        """Return how many numbers one token needs at once at the widest point of a layer."""
        qkv = (self.query_heads + 2 * self.kv_heads) * self.head_dim
        attention = 3 * self.hidden_size + 3 * qkv
        mlp = 3 * self.hidden_size + 4 * self.intermediate_size
        return max(attention, mlp)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: PagedAttention) -> torch.Tensor:
        """Map [tokens] ids at [tokens] positions to [tokens, hidden] states before the final norm."""
        rotary = self._rotary(positions)
        hidden = torch.nn.functional.embedding(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            normed = self.rms_norm(hidden, layer.input_norm, self._epsilon)
            hidden = layer.output.add_to(hidden, attention.forward(index, layer.qkv(normed), rotary))
            gated = layer.gate_up.swiglu(self.rms_norm(hidden, layer.mlp_norm, self._epsilon))
            hidden = layer.down.add_to(hidden, gated)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [rows, hidden] to float32 [rows, vocabulary]; callers pass only the rows that sample."""
        return self._head.wide(self.rms_norm(hidden, self._final_norm, self._epsilon))

    def _rotary(self, positions: torch.Tensor) -> RotaryTable:
        angles = positions[:, None].float() * self._inverse_frequencies
        doubled = torch.cat((angles, angles), dim=-1)[:, None, :]
        cosine, sine = doubled.cos() * self._rotary_scale, doubled.sin() * self._rotary_scale
        return RotaryTable(cosine.to(self._dtype), sine.to(self._dtype))

    def _load_layer(self, load: "_Loader", prefix: str, config: Any) -> LlamaLayer:
        hidden, query, kv = self.hidden_size, self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        has_bias = bool(getattr(config, "attention_bias", False))
        mlp_bias = bool(getattr(config, "mlp_bias", False))
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        return LlamaLayer(
            input_norm=load.weight(prefix + "input_layernorm.weight", (hidden,)),
            qkv=fuse(
                [
                    load.linear(attention + "q_proj", query, hidden, has_bias),
                    load.linear(attention + "k_proj", kv, hidden, has_bias),
                    load.linear(attention + "v_proj", kv, hidden, has_bias),
                ]
            ),
            output=load.linear(attention + "o_proj", hidden, query, has_bias),
            mlp_norm=load.weight(prefix + "post_attention_layernorm.weight", (hidden,)),
            gate_up=fuse(
                [
                    load.linear(mlp + "gate_proj", self.intermediate_size, hidden, mlp_bias),
                    load.linear(mlp + "up_proj", self.intermediate_size, hidden, mlp_bias),
                ],
                is_gated=True,
            ),
            down=load.linear(mlp + "down_proj", hidden, self.intermediate_size, mlp_bias),
        )

    def _check(self, config: Any) -> None:
        if config.hidden_act != "silu":
            raise StartupError(f"the model's activation is {config.hidden_act}; this engine computes silu")
        if self.query_heads % self.kv_heads:
            raise StartupError(
                f"{self.query_heads} query heads do not divide over {self.kv_heads} key-value heads: "
                "config.json is wrong"
            )


@dataclass(frozen=True)
class _Loader:
    """Read weights with their expected shapes."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device

    def weight(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self.checkpoint.tensor(name)
        if tuple(tensor.shape) != shape:
            raise StartupError(
                f"weight {name} has shape {tuple(tensor.shape)}, config.json says {shape}: the files do not belong "
                "together"
            )
        return tensor.to(device=self.device, dtype=self.dtype).contiguous()

    def linear(self, name: str, outputs: int, inputs: int, has_bias: bool) -> Linear:
        bias = self.weight(name + ".bias", (outputs,)) if has_bias else None
        return Linear(self.weight(name + ".weight", (outputs, inputs)), bias)


def _rotary_parameters(config: Any, head_dim: int, device: torch.device) -> tuple[torch.Tensor, float]:
    """Return float32 [head_dim / 2] inverse frequencies and the scale of the rotation, by transformers' own rules."""
    # Not through LlamaRotaryEmbedding: importing the model's module takes a second of every start.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = getattr(config, "rope_parameters", None) or {}
    rope_type = parameters.get("rope_type", "default")
    if rope_type not in STATIC_ROPE_TYPES:
        raise StartupError(
            f"rope type {rope_type} changes with the length of the sequence, which cached keys cannot follow; "
            f"supported are {', '.join(STATIC_ROPE_TYPES)}"
        )
    if rope_type == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        return 1.0 / parameters["rope_theta"] ** exponents, 1.0
    initialise: Callable[..., Any] = ROPE_INIT_FUNCTIONS[rope_type]
    frequencies, scale = initialise(config, device)
    return frequencies.to(device=device, dtype=torch.float32), float(scale)
