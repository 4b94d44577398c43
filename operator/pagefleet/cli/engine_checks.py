"""What the engine's flags may be. Pure; a wrong value gets a sentence with one that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagefleet.engine.config import EngineConfig, ServerConfig

LARGEST_PORT = 65_535


def find_mistakes(engine: EngineConfig, server: ServerConfig) -> list[str]:
    """List what is out of range: one sentence per mistake, empty when the engine can try to start."""
    return [*_counts(engine), *_shares_and_sizes(engine), *_server(server)]


def _counts(engine: EngineConfig) -> Iterator[str]:
    # flag, value, smallest, a value that works
    for flag, value, smallest, works in (
        ("--block-size", engine.block_size, 1, 16),
        ("--max-model-len", engine.max_model_len, 1, 2048),
        ("--max-num-seqs", engine.max_num_seqs, 1, 128),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens, 1, 512),
        ("--long-prefill-token-threshold", engine.long_prefill_token_threshold, 0, 256),
        ("--max-num-queued-reqs", engine.max_num_queued_reqs, 0, 1024),
        ("--max-num-queued-tokens", engine.max_num_queued_tokens, 0, 100_000),
        ("--threads", engine.threads, 1, 2),
        ("--seed", engine.seed, 0, 0),
    ):
        if value is not None and value < smallest:
            yield f"{flag} {value} is too small: the smallest is {smallest}, for example {flag} {works}."
    if engine.seed >= 2**63:
        yield f"--seed {engine.seed} does not fit 63 bits: for example --seed 0."


def _shares_and_sizes(engine: EngineConfig) -> Iterator[str]:
    if not engine.model:
        yield "MODEL is empty: write a folder, a GGUF file, a Hugging Face id or package://module/file."
    if not 0 < engine.gpu_memory_utilization <= 1:
        yield (
            f"--gpu-memory-utilization {engine.gpu_memory_utilization:g} is not a share of the memory: "
            "more than 0 and at most 1, for example --gpu-memory-utilization 0.9."
        )
    if not 0 <= engine.batching_timeout_s < float("inf"):
        yield f"--batching-timeout {engine.batching_timeout_s:g} is not a time in seconds: for example 0.1."
    if engine.queue_ttft_target_s is not None and not 0 < engine.queue_ttft_target_s < float("inf"):
        yield f"--queue-ttft-target {engine.queue_ttft_target_s:g} is not a time in seconds: for example 2."
    if engine.kv_events_endpoint is not None:
        if not engine.kv_events_endpoint.startswith(("tcp://", "ipc://")):
            yield (
                f"--kv-events-endpoint {engine.kv_events_endpoint} is not a ZeroMQ address: "
                "for example --kv-events-endpoint tcp://*:5557."
            )
        if not engine.enable_prefix_caching:
            yield "--kv-events-endpoint tells what the prefix cache holds: leave out --no-enable-prefix-caching."
    if engine.kv_cache_memory_bytes is not None and engine.kv_cache_memory_bytes <= 0:
        yield "--kv-cache-memory-bytes 0 holds no token: for example --kv-cache-memory-bytes 512Mi."


def _server(server: ServerConfig) -> Iterator[str]:
    for flag, port, works in (("--port", server.port, 8000), ("--admin-port", server.admin_port, 9000)):
        if not 0 <= port <= LARGEST_PORT:
            yield f"{flag} {port} is not a port: 1 to {LARGEST_PORT} or 0 for any, for example {flag} {works}."
    if server.port == server.admin_port != 0:
        yield (
            f"--port and --admin-port are both {server.port}: probes must answer while the API is busy, "
            f"so use two, for example --admin-port {server.port + 1 if server.port < LARGEST_PORT else 9000}."
        )
    if not 0 <= server.drain_timeout_s < float("inf"):
        yield f"--drain-timeout {server.drain_timeout_s:g} is not a time in seconds: for example --drain-timeout 600."
