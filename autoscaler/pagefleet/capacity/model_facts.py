"""What a model is, as far as memory and speed depend on it. Numbers of the whole model, before it is split."""

from dataclasses import dataclass

from pagefleet.capacity.weight_facts import WeightFacts


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Describe multi-head latent attention: a layer caches one compressed vector per token for all heads."""

    kv_rank: int
    rotary_dim: int


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Describe a mixture of experts."""

    total: int
    """Routed experts of a layer."""
    per_token: int
    """Routed experts that compute each token."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Hold what config.json tells, checked."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    """Width of the feed-forward part that one token passes; of all its experts together."""
    query_heads: int
    kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_length: int
    windows: tuple[int | None, ...]
    """Tokens that each layer looks back at most; None is all of them. Its length is the number of layers."""
    latent: LatentAttention | None = None
    experts: Experts | None = None
    has_capped_scores: bool = False
    """Attention scores are soft-capped."""
    ties_head: bool = False
    """The output matrix is the embedding table."""
    draft_layers: int = 0
    """Layers for speculation that follow the model's own in its files and are not loaded."""
    stored_dtype: str = "bfloat16"
    """The checkpoint's own number format, in torch's words."""
    quantization: str | None = None
    """How the checkpoint's weights are quantized (`gptq`, `awq`, `fp8`, `mxfp4`…); None where they are not."""
    needs: tuple[str, ...] = ()
    """What an engine must be able to do beside plain attention, such as `latent attention`."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.windows)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Join what config.json and the headers of the weights tell."""

    name: str
    architecture: Architecture
    weights: WeightFacts
