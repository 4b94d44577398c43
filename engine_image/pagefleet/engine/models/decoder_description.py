"""What a family of decoders has, as data: sizes, and the options in which families of the Llama kind differ."""

from dataclasses import dataclass

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.interface import LayerAttention
from pagefleet.engine.layers.activation import ACTIVATIONS
from pagefleet.engine.layers.rotary import RotaryEmbedding


@dataclass(frozen=True, kw_only=True)
class DecoderDescription:
    """Describe one decoder; the defaults are Llama's."""

    query_heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocabulary_size: int
    context_length: int
    norm_epsilon: float
    attention: tuple[LayerAttention, ...]
    """How each layer attends; its length is the number of layers."""
    rotary: tuple[RotaryEmbedding, ...]
    """The rotation of each layer; layers that share one have the same object."""
    rotary_dim: int
    """How much of each head is rotated."""
    activation: str = "silu"
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False
    """Each query and key head is normalised before its rotation."""
    has_output_norms: bool = False
    """What attention and feed-forward return is normalised before it is added."""
    norms_add_one: bool = False
    """Norms are stored less 1."""
    is_fused: bool = False
    """The checkpoint holds QKV and gate-up as one matrix each."""
    embedding_scale: float | None = None
    logit_soft_cap: float | None = None
    ties_head: bool = False

    def check(self) -> None:
        """Refuse what no code is there for; raises StartupError."""
        if self.activation not in ACTIVATIONS:
            raise StartupError(
                f"the model's activation is {self.activation}; this engine computes {', '.join(ACTIVATIONS)}"
            )
        if self.query_heads % self.kv_heads:
            raise StartupError(
                f"{self.query_heads} query heads do not divide over {self.kv_heads} key-value heads: "
                "config.json is wrong"
            )
