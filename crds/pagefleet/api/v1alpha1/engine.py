"""The engine's knobs. Each is optional: what is left out, the planner chooses."""

from enum import StrEnum
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from pagefleet.api.base import ApiModel, Boolean, Fraction, PositiveInteger
from pagefleet.api.cel import Rule, section_rules, text
from pagefleet.api.v1alpha1.model import ModelReference


class WeightQuantization(StrEnum):
    """How weights are stored: as published, rounded at load (int8, int4), quantized before (gptq, awq), 2:4 sparse."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"
    GPTQ = "gptq"
    AWQ = "awq"
    SPARSE24 = "sparse24"


class KvCacheDtype(StrEnum):
    """How keys and values are stored: as computed (auto), or in fewer bits. k4v3 is 4-bit keys and 3-bit values."""

    AUTO = "auto"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    K4V3 = "k4v3"


class BatchingMode(StrEnum):
    """When requests join a batch: at each step, when a short window closes, or when the batch before is done."""

    CONTINUOUS = "continuous"
    DYNAMIC = "dynamic"
    STATIC = "static"


class SpeculativeMethod(StrEnum):
    """Who proposes tokens: the text so far (ngram), or a smaller model (draft)."""

    NGRAM = "ngram"
    DRAFT = "draft"


class WeightsSpec(ApiModel):
    """How the model's weights are stored."""

    quantization: WeightQuantization | None = None
    """none keeps the published precision; int8 and int4 round at load; gptq, awq and sparse24 need a model made so."""


class KvCacheSpec(ApiModel):
    """How the KV cache is stored."""

    dtype: KvCacheDtype | None = None
    """auto is the model's own precision. Fewer bits hold more tokens and lose some accuracy."""


class ParallelismSpec(ApiModel):
    """How one replica is spread over its accelerators."""

    tensor: PositiveInteger | None = None
    """Accelerators that share each layer."""
    pipeline: PositiveInteger | None = None
    """Groups of layers, each on accelerators of its own."""


_SPECULATIVE_RULES = (
    Rule(
        "self.method != 'draft' || has(self.model)",
        text("method draft needs a model; write model: {uri: hf://organisation/model}, or method: ngram"),
    ),
    Rule(
        "self.method != 'ngram' || !has(self.model)",
        text("method ngram takes no model, but it is '%s'; remove it, or write method: draft", "self.model.uri"),
    ),
)


class SpeculativeSpec(ApiModel):
    """Speculative decoding: several tokens are proposed cheaply and checked in one pass. Outputs don't change."""

    model_config = ConfigDict(json_schema_extra=section_rules(*_SPECULATIVE_RULES))

    method: SpeculativeMethod
    """ngram proposes from the text so far; draft asks a smaller model."""
    tokens: PositiveInteger | None = None
    """Tokens proposed for each step."""
    model: ModelReference | None = None
    """The smaller model, for draft only. It must share the served model's tokenizer."""

    @model_validator(mode="after")
    def _model_fits_method(self) -> Self:
        if self.method is SpeculativeMethod.DRAFT and self.model is None:
            raise ValueError(
                "method draft needs a model; write model: {uri: hf://organisation/model}, or method: ngram"
            )
        if self.method is SpeculativeMethod.NGRAM and self.model is not None:
            raise ValueError(
                f"method ngram takes no model, but it is {self.model.uri!r}; remove it, or write method: draft"
            )
        return self


_ENGINE_RULES = (
    Rule(
        "!has(self.maxNumSeqs) || !has(self.maxNumBatchedTokens) || self.maxNumSeqs <= self.maxNumBatchedTokens",
        text(
            "maxNumBatchedTokens is %d, less than maxNumSeqs %d, so a step can't give each sequence a token; "
            "write maxNumBatchedTokens: %d or more, or maxNumSeqs: %d or less",
            "self.maxNumBatchedTokens",
            "self.maxNumSeqs",
            "self.maxNumSeqs",
            "self.maxNumBatchedTokens",
        ),
    ),
    Rule(
        "!has(self.blockSize) || !has(self.maxModelLen) || self.blockSize <= self.maxModelLen",
        text(
            "blockSize is %d, more than maxModelLen %d; write blockSize: %d or less",
            "self.blockSize",
            "self.maxModelLen",
            "self.maxModelLen",
        ),
    ),
)


class EngineSpec(ApiModel):
    """Settings of the engine; what is left out, the planner chooses."""

    model_config = ConfigDict(json_schema_extra=section_rules(*_ENGINE_RULES))

    block_size: PositiveInteger | None = None
    """Tokens in one KV-cache block. Small blocks waste less at a sequence's end, large ones read faster."""
    gpu_memory_utilization: Fraction | None = None
    """Share of the accelerator's memory that the engine may use, above 0 and up to 1."""
    max_model_len: PositiveInteger | None = None
    """Longest sequence, prompt and answer together, in tokens."""
    max_num_seqs: PositiveInteger | None = None
    """Most sequences in one step."""
    max_num_batched_tokens: PositiveInteger | None = None
    """Most tokens, of prompts and answers together, in one step. Fewer even out latency, more raise throughput."""
    weights: WeightsSpec = Field(default=WeightsSpec())
    """How the model's weights are stored."""
    kv_cache: KvCacheSpec = Field(default=KvCacheSpec())
    """How the KV cache is stored."""
    prefix_caching: Boolean | None = None
    """Whether blocks of a finished request are kept for later requests that begin with the same tokens."""
    batching: BatchingMode | None = None
    """continuous lets requests join at each step; dynamic and static are there to compare with."""
    parallelism: ParallelismSpec = Field(default=ParallelismSpec())
    """How one replica is spread over its accelerators."""
    speculative: SpeculativeSpec | None = None
    """Speculative decoding. Left out: off."""

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        sequences, tokens = self.max_num_seqs, self.max_num_batched_tokens
        if sequences is not None and tokens is not None and tokens < sequences:
            raise ValueError(
                f"maxNumBatchedTokens is {tokens}, less than maxNumSeqs {sequences}, so a step can't give each "
                f"sequence a token; write maxNumBatchedTokens: {sequences} or more, or maxNumSeqs: {tokens} or less"
            )
        block, length = self.block_size, self.max_model_len
        if block is not None and length is not None and block > length:
            raise ValueError(f"blockSize is {block}, more than maxModelLen {length}; write blockSize: {length} or less")
        return self
