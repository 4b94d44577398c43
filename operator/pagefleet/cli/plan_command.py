"""`pagefleet plan`: whether and how a model fits an accelerator, before anything is downloaded or started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pagefleet.cli.errors import UserMistake

if TYPE_CHECKING:
    from pagefleet.capacity import Accelerator, ModelFacts, PlanRequest
    from pagefleet.cli.plan.inputs import Subject


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|MANIFEST",
            help="Hugging Face folder or hub id, GGUF file, package://module/file, or a manifest (.yaml).",
            show_default=False,
        ),
    ],
    accelerator: Annotated[
        str | None, typer.Option(help="Such as h100-80g, or cpu; default the manifest's, else this machine's CPU.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of one accelerator, such as 24GiB.")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="Its memory bandwidth in GB/s, measured.")] = None,
    tflops: Annotated[float | None, typer.Option(help="Its dense TFLOP/s in the compute type, measured.")] = None,
    count: Annotated[int | None, typer.Option(help="Accelerators of one replica.")] = None,
    dtype: Annotated[str, typer.Option(help="Compute type: auto, bfloat16 or float32.")] = "auto",
    prompt_tokens: Annotated[
        str | None,
        typer.Option(help="Mean prompt, default 512; or shares by length: 512:0.9,8192:0.1.", metavar="MEAN|N:SHARE,…"),
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option(help="Mean output, default 256; or shares by length.", metavar="MEAN|N:SHARE,…")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second of the service.")] = None,
    shared_prefix: Annotated[float | None, typer.Option(help="Share of prompt tokens that are cached, 0 to 1.")] = None,
    objective: Annotated[
        Literal["throughput", "latency", "cost", "memory"] | None,
        typer.Option(help="What to improve; memory takes as little as the load needs. Default throughput."),
    ] = None,
    ttft_ms: Annotated[float | None, typer.Option(help="Time to the first token, at most.")] = None,
    itl_ms: Annotated[float | None, typer.Option(help="Time between two tokens, at most.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="KV cache types to choose from: auto,int8.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight formats to choose from: none,int8.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens in one KV block.")] = None,
    gpu_memory_utilization: Annotated[float | None, typer.Option(help="Share of the memory to use.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt plus output.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Sequences in one step at most.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens in one step at most.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Step times that `pagefleet profile --json` measured.", metavar="FILE")
    ] = None,
    quality: Annotated[
        Path | None,
        typer.Option(
            help="What `pagefleet bench quality --json` measured: formats that pass may be chosen.", metavar="FILE"
        ),
    ] = None,
    max_kl: Annotated[float | None, typer.Option(help="KL in nats that passes; default 0.03.")] = None,
    compare: Annotated[str | None, typer.Option(help="Accelerators side by side: a100-80g,h100-80g.")] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="Price per hour of one, such as h100-80g=2.5; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Tell whether a model fits, with which settings, what limits it and what would change that. Reads no weights."""
    from pagefleet.capacity import CannotPlan, PinnedKnobs
    from pagefleet.cli.plan.inputs import Flags, override, parse_list, parse_prices, subjects_of

    prices = parse_prices(price or [])
    if prices and compare is None:
        raise UserMistake("--price belongs to --compare: for example --compare a100-80g,h100-80g")
    single = {"--accelerator": accelerator, "--memory": memory, "--bandwidth": bandwidth, "--tflops": tflops}
    if compare is not None and profile is not None:
        raise UserMistake(f"--profile {profile} is of one machine, and --compare {compare} names others: leave one out")
    if compare is not None and (given := [flag for flag, value in single.items() if value is not None]):
        raise UserMistake(f"{given[0]} describes one accelerator, and --compare {compare} names its own: leave one out")
    flags = Flags(
        accelerator=accelerator,
        memory=memory,
        count=count,
        dtype=dtype,
        revision=revision,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        rate=rate,
        shared_prefix=shared_prefix,
        objective=objective,
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        kv_cache_dtype=kv_cache_dtype,
        weights=weights,
        quality=quality,
        max_kl=max_kl,
        pinned=PinnedKnobs(
            block_size=block_size,
            gpu_memory_utilization=gpu_memory_utilization,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        ),
    )
    try:
        subjects = [override(subject, flags) for subject in subjects_of(model)]
        if compare is None:
            _print_plans(subjects, bandwidth, tflops, as_json, profile)
        else:
            _print_comparison(subjects, parse_list("--compare", compare), prices, as_json)
    except CannotPlan as error:
        raise UserMistake(str(error)) from None


def _print_plans(
    subjects: list[Subject],
    bandwidth_gb_per_s: float | None,
    tflops: float | None,
    as_json: bool,
    profile: Path | None,
) -> None:
    """Print the plan of every subject that has one, then end with the refusals of the others."""
    from pagefleet.capacity import CannotPlan, make_plan
    from pagefleet.cli.plan.document import plan_document
    from pagefleet.cli.plan.drawing import draw_plan, make_console
    from pagefleet.cli.plan.inputs import choose_accelerator, on_measured
    from pagefleet.cli.plan.model_sources import read_model_facts
    from pagefleet.cli.plan.profile_file import read_profile
    from pagefleet.cli.plan.quality_file import manifest_line

    measured = None
    if profile is not None:
        read = read_profile(profile)
        measured = read.measured
        subjects = [on_measured(subject, device=read.device, memory_bytes=read.memory_bytes) for subject in subjects]
        bandwidth_gb_per_s, tflops = bandwidth_gb_per_s or read.bandwidth_gb_per_s, tflops or read.tflops
    plans, refusals = [], []
    for subject in subjects:
        found = choose_accelerator(subject, bandwidth_gb_per_s=bandwidth_gb_per_s, tflops=tflops)
        facts = read_model_facts(subject.model, revision=subject.revision)
        try:
            plans.append((subject, make_plan(replace(_request(subject, facts, found), measured=measured))))
        except CannotPlan as error:
            refusals.append(f"{subject.name}: {error}" if subject.is_service else str(error))
    if as_json:
        typer.echo(json.dumps([plan_document(plan, subject.name) for subject, plan in plans], indent=2))
    else:
        console = make_console()
        for subject, plan in plans:
            console.print(draw_plan(plan, subject.name if subject.is_service else plan.model))
            if subject.uri is not None and subject.gate.results:
                line = manifest_line(subject.gate, subject.uri)
                typer.echo(f"The operator takes these results from spec.tuning:\n  {line}")
    if refusals:
        raise UserMistake(refusals)


def _print_comparison(subjects: list[Subject], names: tuple[str, ...], prices: dict[str, float], as_json: bool) -> None:
    """Print one row for each accelerator; what does not fit is a row too."""
    from pagefleet.capacity import CannotPlan, CapacityPlan, make_plan
    from pagefleet.cli.plan.document import plan_document
    from pagefleet.cli.plan.drawing import draw_comparison, make_console
    from pagefleet.cli.plan.inputs import choose_accelerator
    from pagefleet.cli.plan.model_sources import read_model_facts

    if unused := [name for name in prices if name not in names]:
        raise UserMistake(f"--price {unused[0]} is not compared: write --compare {','.join((*names, unused[0]))}")
    documents: list[dict[str, Any]] = []
    for subject in subjects:
        facts = read_model_facts(subject.model, revision=subject.revision)
        rows: list[tuple[str, CapacityPlan | CannotPlan]] = []
        for name in names:
            found = choose_accelerator(replace(subject, accelerator=name, memory_bytes=None))
            try:
                rows.append((name, make_plan(_request(subject, facts, found))))
            except CannotPlan as refusal:
                rows.append((name, refusal))
        if not as_json:
            make_console().print(draw_comparison(subject.name, rows, prices))
        documents += [
            plan_document(row, subject.name)
            if isinstance(row, CapacityPlan)
            else {"name": subject.name, "accelerator": name, "refusal": str(row)}
            for name, row in rows
        ]
    if as_json:
        typer.echo(json.dumps(documents, indent=2))


def _request(subject: Subject, facts: ModelFacts, found: Accelerator) -> PlanRequest:
    from pagefleet.capacity import PlanRequest, pagefleet_profile

    return PlanRequest(
        model=facts,
        accelerator=found,
        engine=pagefleet_profile(found.kind),
        count=subject.count,
        dtype=subject.dtype,
        workload=subject.workload,
        objective=subject.objective,
        pinned=subject.pinned,
        allowed=subject.allowed,
        gate=subject.gate,
    )
