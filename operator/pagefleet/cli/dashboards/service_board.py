"""The board of one service and its engines: what users see, what engines do, where memory goes."""

from pagefleet.api.metrics import METRIC
from pagefleet.cli.dashboards.board import Board, Panel, PanelKind, Query, Row, Threshold, Unit
from pagefleet.cli.dashboards.expressions import engine, kv_blocks, mean, or_none, quantile, quantiles, rate, variables

_USERS = Row(
    "What users see",
    (
        Panel(
            title="Time to first token",
            description="From a request's arrival to its first token. It grows with the queue.",
            queries=quantiles("time_to_first_token_seconds"),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Inter-token latency",
            description="Time between two tokens of one answer. Grows with the batch and with long prompts beside it.",
            queries=quantiles("inter_token_latency_seconds"),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Whole answers",
            description="From a request's arrival to its last token, of answers that were not cut off.",
            queries=quantiles("e2e_request_latency_seconds"),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Finished requests",
            description="Requests a second by how they ended. `abort`: the client left. `error`: the engine's fault.",
            queries=(Query(f"sum by (finished_reason) ({rate(engine('request_success'))})", "{{finished_reason}}"),),
            unit=Unit.REQUESTS_PER_SECOND,
            is_stacked=True,
        ),
        Panel(
            title="Refused and failed",
            description="Answers with an HTTP error, and requests refused before the queue. 0 is normal; 429 is load.",
            queries=(
                Query(or_none(f"sum by (code) ({rate(engine('request_errors'))})", "code"), "HTTP {{code}}"),
                Query(
                    or_none(f"sum by (reason) ({rate(engine('admission_rejections'))})", "reason"), "refused {{reason}}"
                ),
            ),
            unit=Unit.REQUESTS_PER_SECOND,
        ),
        Panel(
            title="Tokens",
            description="Prompt tokens admitted and tokens generated, of all replicas together.",
            queries=(
                Query(f"sum ({rate(engine('prompt_tokens'))})", "prompt"),
                Query(f"sum ({rate(engine('generation_tokens'))})", "generated"),
            ),
            unit=Unit.TOKENS_PER_SECOND,
        ),
    ),
)

_STEPS = Row(
    "What engines do",
    (
        Panel(
            title="Running requests",
            description="Sequences in the batch of each replica. Unequal lines: the router sees stale load.",
            queries=(Query(engine("num_requests_running"), "{{pod}}"),),
        ),
        Panel(
            title="Waiting, and for what",
            description="blocks: KV memory is full. sequences: max-num-seqs. tokens: prompts fill the step's budget.",
            queries=(
                Query(f"sum by (reason) ({engine('num_requests_waiting_by_reason')})", "for {{reason}}"),
                Query(f"sum ({engine('num_requests_waiting')})", "all"),
            ),
        ),
        Panel(
            title="Age of the queue",
            description="Age of the oldest request not yet admitted. A straight rise: nothing is admitted.",
            queries=(Query(engine("queue_age_seconds"), "{{pod}}"),),
            unit=Unit.SECONDS,
            thresholds=(Threshold(2, "orange"), Threshold(10, "red")),
        ),
        Panel(
            title="Queued prompt tokens",
            description="Work that waits, in prompt tokens: says more than a count of requests of unknown size.",
            queries=(Query(engine("queued_tokens"), "{{pod}}"),),
            unit=Unit.TOKENS,
        ),
        Panel(
            title="Step time",
            description="One forward pass over the mixed batch. Its tails are steps with long prompts.",
            queries=quantiles("step_time_seconds"),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Tokens in a step",
            description="Mean tokens of one step by replica; at max-num-batched-tokens prompts limit the engine.",
            queries=(Query(mean("iteration_tokens_total", "pod"), "{{pod}}"),),
            unit=Unit.TOKENS,
        ),
        Panel(
            title="Where a request's time goes",
            description="95th percentiles: waiting to be admitted, admission to first token, first token to last.",
            queries=(
                Query(quantile(0.95, "request_queue_time_seconds"), "queued"),
                Query(quantile(0.95, "request_prefill_time_seconds"), "prefill"),
                Query(quantile(0.95, "request_decode_time_seconds"), "decode"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Request lengths",
            description="Tokens of prompts and answers: the load that a capacity plan must know.",
            queries=tuple(
                Query(quantile(share, key), f"{what} p{100 * share:g}")
                for what, key in (("prompt", "request_prompt_tokens"), ("answer", "request_generation_tokens"))
                for share in (0.5, 0.95)
            ),
            unit=Unit.TOKENS,
        ),
        Panel(
            title="Tokens generated by replica",
            description="Over the last few seconds, as each engine counts it.",
            queries=(Query(engine("generation_tokens_per_second"), "{{pod}}"),),
            unit=Unit.TOKENS_PER_SECOND,
        ),
    ),
)

_CACHE = Row(
    "KV cache",
    (
        Panel(
            title="KV occupancy",
            description="Share of blocks that live sequences hold; cached blocks are free at once and don't count.",
            queries=(Query(engine("kv_cache_usage_perc"), "{{pod}}"),),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.8, "orange"), Threshold(0.95, "red")),
            is_share=True,
        ),
        Panel(
            title="Blocks by state",
            description="Held by sequences, kept by the prefix cache, empty; of all replicas together.",
            queries=tuple(Query(kv_blocks(state), state) for state in ("active", "cached", "free")),
            is_stacked=True,
        ),
        Panel(
            title="Prefix hits",
            description="Share of prompt tokens found in the prefix cache. Low with shared prompts: too few blocks.",
            queries=(
                Query(
                    f"sum ({rate(engine('prefix_cache_hits'))}) / sum ({rate(engine('prefix_cache_queries'))})",
                    "found",
                ),
            ),
            unit=Unit.RATIO,
            is_share=True,
        ),
        Panel(
            title="Preemptions",
            description="Sequences that lost their blocks and are computed again. Lasting: add memory or replicas.",
            queries=(Query(f"sum by (pod) ({rate(engine('num_preemptions'))})", "{{pod}}"),),
            unit=Unit.PER_SECOND,
            thresholds=(Threshold(0.1, "orange"), Threshold(1, "red")),
        ),
        Panel(
            title="Life of cached blocks",
            description="Medians: from entering the cache to removal, from last use to removal, and between two uses.",
            queries=(
                Query(quantile(0.5, "kv_block_lifetime_seconds"), "lifetime"),
                Query(quantile(0.5, "kv_block_idle_before_evict_seconds"), "idle before removal"),
                Query(quantile(0.5, "kv_block_reuse_gap_seconds"), "between uses"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Memory in use",
            description="Over the limit: the accelerator's, or on a CPU the process's.",
            queries=(Query(engine("memory_utilization_ratio"), "{{pod}}"),),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.95, "orange"), Threshold(0.99, "red")),
            is_share=True,
        ),
    ),
)

_START = Row(
    "Memory and start",
    (
        Panel(
            title="Memory, measured and predicted",
            description="What the planner expected of each part, and what the start found; the largest replica.",
            queries=(Query(f"max by (part, kind) ({engine('memory_bytes')})", "{{part}} {{kind}}"),),
            unit=Unit.BYTES,
            kind=PanelKind.BARS,
        ),
        Panel(
            title="Memory beyond the plan",
            description="0.05 is 5 % more than planned: the next larger load may not fit.",
            queries=(Query(engine("memory_drift_ratio"), "{{pod}}"),),
            unit=Unit.RATIO,
            thresholds=(Threshold(0.05, "orange"), Threshold(0.1, "red")),
            may_be_negative=True,
        ),
        Panel(
            title="Start-up stages",
            description="What a new replica spends its time on; the slowest replica of each stage.",
            queries=(Query(f"max by (stage) ({engine('startup_stage_seconds')})", "{{stage}}"),),
            unit=Unit.SECONDS,
            kind=PanelKind.BARS,
        ),
        Panel(
            title="Engines",
            description="Version, settings and back ends that each replica runs with. Rows that differ: a rollout.",
            queries=(
                Query(
                    f"max by (pod, device, dtype, quantization, batching, attention_backend, max_model_len, "
                    f"max_num_seqs, max_num_batched_tokens, config_hash) ({engine('config_info')})",
                    "engines",
                ),
                Query(
                    f"max by (pod, block_size, num_gpu_blocks, cache_dtype) ({engine('cache_config_info')})", "caches"
                ),
                Query(f"max by (pod, version, torch_version) ({engine('build_info')})", "builds"),
            ),
            kind=PanelKind.TABLE,
            width=24,
        ),
    ),
)

SERVICE_BOARD = Board(
    name="service",
    title="pagefleet / Service and engine",
    description="One service: what its users see, what its engines do, and where memory goes.",
    variables=variables(of=METRIC["num_requests_running"].name, model=True),
    rows=(_USERS, _STEPS, _CACHE, _START),
)
