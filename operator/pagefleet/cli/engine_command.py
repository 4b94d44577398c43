"""`pagefleet engine serve`: the engine's flags, named as vLLM names them, into its two frozen settings objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from pagefleet.cli.errors import UserMistake, require_extra

if TYPE_CHECKING:
    from pagefleet.engine.config import EngineConfig, ServerConfig

# Checked without importing them: torch alone takes seconds, and the API process does without it.
ENGINE_MODULES = (
    "fastapi",
    "msgspec",
    "prometheus_client",
    "psutil",
    "tokenizers",
    "torch",
    "transformers",
    "uvicorn",
    "zmq",
)

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - a pod serves its network; `play` passes 127.0.0.1


def parse_bytes(text: str) -> int:
    """Read an amount of memory such as 512Mi; raises BadParameter."""
    from pagefleet.api.quantity import quantity_bytes

    try:
        return quantity_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Hugging Face folder or hub id, GGUF file, or package://module/file.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _EVERY_ADDRESS,
    port: Annotated[int, typer.Option(help="Port of the OpenAI API.")] = 8000,
    admin_port: Annotated[int, typer.Option(help="Port of probes, capacity and drain.")] = 9000,
    served_model_name: Annotated[
        str, typer.Option(help="Name of the model in requests and metrics; default MODEL.", show_default=False)
    ] = "",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub id; default the main branch.")
    ] = None,
    model_impl: Annotated[
        Literal["auto", "native", "transformers"],
        typer.Option(help="Code that computes the model; auto is native where there is some, else transformers."),
    ] = "auto",
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        typer.Option(help="Compute type; auto is the checkpoint's, or float32 on a CPU without bfloat16."),
    ] = "auto",
    quantization: Annotated[
        Literal["none", "int8", "int4", "gptq", "awq"],
        typer.Option(
            help="int4 and, on a CPU, int8 round weights as they are loaded; gptq and awq demand such a model."
        ),
    ] = "none",
    quantization_ignore: Annotated[
        str,
        typer.Option(
            metavar="PARTS",
            help="Parts that keep their precision: such as lm_head,down_proj; an empty text rounds all.",
        ),
    ] = "lm_head",
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "float32", "fp8", "int8", "int4", "k4v3"],
        typer.Option(
            help="Type of cached keys and values: auto is --dtype; int8, int4 and k4v3 round all but each sequence's "
            "first 64 tokens and last block to 8, 4 or 3.5 bits."
        ),
    ] = "auto",
    block_size: Annotated[
        int | None, typer.Option(help="Tokens in one KV block; default 16, or 64 where they are rounded.")
    ] = None,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Share the KV blocks of prompts that begin alike, also with finished requests.")
    ] = True,
    kv_events_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="ZeroMQ address, such as tcp://*:5557, that tells routers what the prefix cache holds; default none.",
        ),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the device's memory that the whole engine may use, 0 to 1.")
    ] = 0.9,
    kv_cache_memory_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_bytes, metavar="BYTES", help="Size of the KV cache (512Mi, 2Gi); overrides the share."
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt plus output in tokens; default what model and memory allow.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences in one step at most.")] = 128,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens in one step at most; default 2048 on a GPU, 512 on a CPU.")
    ] = None,
    long_prefill_token_threshold: Annotated[
        int | None, typer.Option(help="Tokens of one prompt in one step at most; default by load, 0 is no cap.")
    ] = None,
    batching: Annotated[
        Literal["continuous", "dynamic", "static"],
        typer.Option(help="Join the running batch in every step; the others are there for comparison."),
    ] = "continuous",
    batching_timeout: Annotated[
        float, typer.Option(help="Seconds that a dynamic batch that is not full waits for more.")
    ] = 0.1,
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], typer.Option(help="Order of the queue: arrival, or the requests' priority first.")
    ] = "fcfs",
    capacity_policy: Annotated[
        Literal["on-demand", "ratio", "no-evict"],
        typer.Option(help="KV blocks that admission looks for: what is known, some of what may come, or all of it."),
    ] = "on-demand",
    max_num_queued_reqs: Annotated[int, typer.Option(help="Requests that may wait before new ones get 503.")] = 1024,
    max_num_queued_tokens: Annotated[
        int | None, typer.Option(help="Prompt tokens that may wait before new requests get 503; default no limit.")
    ] = None,
    queue_ttft_target: Annotated[
        float | None,
        typer.Option(
            help="Seconds to a first token; when the prompts that wait take longer, new requests get 503; default none."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of requests that bring none.")] = 0,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="PAGEFLEET_API_KEY",
            help="Key that /v1 requires as a bearer token; may be repeated (in the variable: with spaces).",
            show_default=False,
        ),
    ] = None,
    trust_request_chat_template: Annotated[
        bool,
        typer.Option(
            "--trust-request-chat-template", help="Run chat templates that requests bring, which are programs."
        ),
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(envvar="PAGEFLEET_DEVICE", help="Where the model runs.")
    ] = "auto",
    attention_backend: Annotated[
        Literal["auto", "c", "triton", "gather"],
        typer.Option(help="Attention kernels: C (CPU), Triton (GPU), or torch's; auto takes the fastest."),
    ] = "auto",
    linear_backend: Annotated[
        Literal["auto", "c", "onednn", "triton", "torch"],
        typer.Option(help="Matrix products; auto measures on a CPU, and on a GPU takes Triton for 4-bit weights."),
    ] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model; default all cores but one.")] = None,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests get after SIGTERM before they are aborted.")
    ] = 600.0,
) -> None:
    """Serve one model over the OpenAI API, with probes and capacity on an admin port."""
    require_extra("engine", ENGINE_MODULES)
    from pagefleet.cli.engine_checks import find_mistakes
    from pagefleet.engine.config import EngineConfig, ServerConfig

    engine = EngineConfig(
        model=model,
        revision=revision,
        model_impl=model_impl,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        quantization=quantization,
        quantization_ignore=tuple(filter(None, quantization_ignore.split(","))),
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        kv_events_endpoint=kv_events_endpoint,
        gpu_memory_utilization=gpu_memory_utilization,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_prefill_token_threshold=long_prefill_token_threshold,
        batching=batching,
        batching_timeout_s=batching_timeout,
        scheduling_policy=scheduling_policy,
        capacity_policy=capacity_policy,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
        queue_ttft_target_s=queue_ttft_target,
        seed=seed,
        device=device,
        attention_backend=attention_backend,
        linear_backend=linear_backend,
        threads=threads,
    )
    server = ServerConfig(
        host=host,
        port=port,
        admin_port=admin_port,
        served_model_name=served_model_name,
        api_keys=tuple(filter(None, api_key or ())),  # an empty variable means no key
        trust_request_chat_template=trust_request_chat_template,
        drain_timeout_s=drain_timeout,
    )
    if mistakes := find_mistakes(engine, server):
        raise UserMistake(mistakes)
    _run(engine, server)


def _run(engine: EngineConfig, server: ServerConfig) -> NoReturn:
    """Serve until a signal, and leave with the engine's exit code."""
    import logging

    from pagefleet.engine.server import lifecycle

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for noisy in ("httpx", "huggingface_hub", "transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    lifecycle.run_and_exit(engine, server)
