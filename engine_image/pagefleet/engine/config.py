"""The engine's settings, read once from the flags into frozen objects; everything else receives values."""

import hashlib

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the core process. Names are vLLM's flags; None means "the engine chooses"."""

    model: str
    """Hugging Face folder or hub id, GGUF file, or `package://module/file`."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; None is the main branch."""
    model_impl: str = "auto"
    """`native` (this engine's own code), `transformers` (its modules over our attention), or `auto`: native if any."""
    dtype: str = "auto"
    """`auto`, `bfloat16` or `float32`. Auto is the checkpoint's, but float32 on a CPU without bfloat16 instructions."""
    kv_cache_dtype: str = "auto"
    """`auto` (the compute dtype), `bfloat16`, `float32`, `fp8` on GPUs that convert it, or packed: `int8`, `int4`,
    `k4v3` (keys of 4 bits, values of 3)."""
    quantization: str = "none"
    """`int8` or `int4` round the weights as they are loaded; `gptq` or `awq` demand a checkpoint made so; or `none`."""
    quantization_ignore: tuple[str, ...] = ("lm_head",)
    """Parts of the model that keep the compute dtype; the head's rounding changes most answers."""
    block_size: int | None = None
    """Tokens in one KV block. None is 16, which wastes 8 tokens per sequence on average, or 64 in a packed cache, where
    the keys of a block share metadata."""
    enable_prefix_caching: bool = True
    """Keep the blocks of finished requests and share them between prompts that begin alike."""
    kv_events_endpoint: str | None = None
    """ZeroMQ address on which the core publishes what the prefix cache holds; None publishes nothing."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory (on CPU: of the cgroup's or the machine's) that the whole engine may use."""
    kv_cache_memory_bytes: int | None = None
    """Bytes of KV cache; overrides the share."""
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; None is the model's context, or less when the cache holds less."""
    max_num_seqs: int = 128
    """Sequences in one step at most."""
    max_num_batched_tokens: int | None = None
    """Token budget of one step; None is 2048 on a GPU and 512 on a CPU, where 2048 would stall decodes for seconds."""
    long_prefill_token_threshold: int | None = None
    """Tokens of one prompt in one step at most; None adapts to the load, 0 sets no cap."""
    batching: str = "continuous"
    """`continuous`, or for comparison `static` (one batch after another) or `dynamic` (which waits to fill one)."""
    batching_timeout_s: float = 0.1
    """How long a dynamic batch that is not full waits for more requests."""
    scheduling_policy: str = "fcfs"
    """`fcfs`, or `priority`: then requests may bring a `priority`, and the smallest is admitted first."""
    capacity_policy: str = "on-demand"
    """`on-demand` admits by what is known, `no-evict` by the most that can come, `ratio` in between."""
    max_num_queued_reqs: int = 1024
    """Requests that may wait before new ones get 503."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens that may wait before new requests get 503; None sets no limit."""
    queue_ttft_target_s: float | None = None
    """New requests get 503 when, at the measured rate, what waits takes longer than this; None sets no limit."""
    seed: int = 0
    """Seeds requests that bring no seed of their own, and random weights."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    attention_backend: str = "auto"
    """`auto`, `c` (the C kernels) or `gather` (torch). Auto takes C where it can serve the model."""
    linear_backend: str = "auto"
    """`auto`, `c`, `onednn`, `torch`, or `triton` for 4-bit weights. Auto measures them on a CPU; on a GPU it is Triton
    for 4-bit weights and torch for others."""
    threads: int | None = None
    """CPU threads of the core; None leaves one core to the HTTP process."""

    @property
    def config_hash(self) -> str:
        """Name this configuration: 12 hex digits that change when any setting does."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the API process."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod serves its network; `play` passes 127.0.0.1
    port: int = 8000
    """Public OpenAI API."""
    admin_port: int = 9000
    """Probes, capacity, drain; never behind a Service."""
    served_model_name: str = ""
    """Name in requests and metrics; the model argument when empty."""
    api_keys: tuple[str, ...] = ()
    """When there are any, /v1 needs one of them as a bearer token."""
    trust_request_chat_template: bool = False
    """Let requests bring their own chat template, which is a program that runs (sandboxed) in this process."""
    drain_timeout_s: float = 600.0
    """Seconds that running requests get after SIGTERM before they are aborted."""
    stall_timeout_s: float = 300.0
    """Seconds without a step while work is pending after which the engine says that it is not live."""
