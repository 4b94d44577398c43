"""From flags and manifests to what the planner is asked: which model, on what, under which load, with which limits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pagefleet.api.manifest import read_manifests
from pagefleet.api.quantity import quantity_bytes
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.capacity import (
    ACCELERATORS,
    Accelerator,
    Allowed,
    Lengths,
    Objective,
    PinnedKnobs,
    QualityGate,
    Workload,
    find_accelerator,
)
from pagefleet.cli.errors import UserMistake, require_extra
from pagefleet.cli.plan import this_machine
from pagefleet.cli.plan.quality_file import read_quality

MANIFEST_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Hold what a plan is about; a manifest fills it, flags override it."""

    name: str
    model: str
    uri: str | None = None
    """The model in a manifest's words; None where the subject is no service."""
    revision: str | None = None
    accelerator: str | None = None
    memory_bytes: int | None = None
    count: int = 1
    dtype: str = "auto"
    workload: Workload = field(default=Workload())
    objective: Objective = Objective.THROUGHPUT
    pinned: PinnedKnobs = field(default=PinnedKnobs())
    allowed: Allowed = field(default=Allowed())
    gate: QualityGate = field(default=QualityGate())

    @property
    def is_service(self) -> bool:
        """Whether it is from a manifest, so that its accelerator is not this machine's by default."""
        return self.uri is not None


def subjects_of(argument: str) -> list[Subject]:
    """Return what a MODEL or a manifest asks for: one subject for each service; raises UserMistake."""
    if Path(argument).suffix not in MANIFEST_SUFFIXES:
        return [Subject(name=argument, model=argument)]
    manifests = read_manifests(argument)
    if manifests.errors:
        raise UserMistake([str(error) for error in manifests.errors])
    if not manifests.services:
        raise UserMistake(f"{argument}: there is no InferenceService in it")
    return [subject_of(loaded.service) for loaded in manifests.services]


def subject_of(service: InferenceService) -> Subject:
    """Return what a service asks for; raises UserMistake."""
    require_extra("operator", ("pagefleet.operator",))  # an image of the engine does without
    from pagefleet.operator.plan.engine_arguments import UnsupportedSpec, locate_model
    from pagefleet.operator.plan.plan_request import allowed_formats, objectives_of, pinned_knobs, quality_gate

    spec = service.spec
    try:
        model = locate_model(service)
    except UnsupportedSpec as error:
        raise UserMistake(f"{service.metadata.name}: {error}") from None
    return Subject(
        name=service.metadata.name,
        model=model,
        uri=spec.model.uri,
        revision=spec.model.source.revision,
        accelerator="cpu" if spec.accelerator.resource is None else None,
        memory_bytes=spec.accelerator.memory_bytes,
        count=spec.accelerator.count,
        workload=objectives_of(spec),
        objective=Objective(spec.tuning.objective),
        pinned=pinned_knobs(spec.engine),
        allowed=allowed_formats(spec),
        gate=quality_gate(spec),
    )


def on_measured(subject: Subject, *, device: str | None, memory_bytes: int | None) -> Subject:
    """Return a subject on the accelerator that a profile measured, where nothing names another."""
    if subject.accelerator is not None or subject.memory_bytes is not None or memory_bytes is None:
        return subject
    return replace(subject, accelerator="cpu" if device == "cpu" else None, memory_bytes=memory_bytes)


def choose_accelerator(
    subject: Subject, *, bandwidth_gb_per_s: float | None = None, tflops: float | None = None
) -> Accelerator:
    """Return the accelerator of a subject; this machine's CPU where nothing names one. Raises CannotPlan."""
    name = subject.accelerator
    if name is None and subject.memory_bytes is None:
        if subject.is_service:
            raise UserMistake(
                f"{subject.name}: the accelerator's memory is unknown: write spec.accelerator.memory, such as 80Gi, "
                f"or give --accelerator, one of {', '.join(ACCELERATORS)}"
            )
        name = "cpu"
    memory_bytes = subject.memory_bytes
    if name == "cpu" and memory_bytes is None:
        memory_bytes = this_machine.memory_limit_bytes()
    found = find_accelerator(
        name,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=None if bandwidth_gb_per_s is None else bandwidth_gb_per_s * 1e9,
        flops_bfloat16=None if tflops is None else tflops * 1e12,
    )
    return replace(found, has_fast_bfloat16=this_machine.has_fast_bfloat16()) if name == "cpu" else found


def parse_memory(flag: str, text: str) -> int:
    """Return the bytes of an amount such as 24GiB or 80Gi; raises UserMistake."""
    try:
        return quantity_bytes(text.removesuffix("B"))
    except ValueError as error:
        raise UserMistake(f"{flag}: {error}") from None


def parse_list(flag: str, text: str) -> tuple[str, ...]:
    """Return the words of a list such as auto,int8; raises UserMistake."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise UserMistake(f"{flag} names nothing: write words with commas between them")
    return words


def parse_lengths(flag: str, text: str | None) -> Lengths | None:
    """Return a mean such as 512, or a histogram such as 512:0.9,8192:0.1; raises UserMistake or CannotPlan.

    The shares of a histogram need not sum to 1: counts of requests are as good.
    """
    if text is None:
        return None
    mistake = UserMistake(f"{flag} {text} is neither a mean such as 512 nor a histogram such as 512:0.9,8192:0.1")
    try:
        if ":" not in text:
            return Lengths(float(text))
        pairs = [entry.split(":") for entry in parse_list(flag, text)]
        histogram = {int(tokens): float(share) for tokens, share in pairs}
    except ValueError:
        raise mistake from None
    if len(histogram) < len(pairs):
        raise UserMistake(f"{flag} {text} names a length twice: give each one share")
    return Lengths.of_histogram(histogram)


def parse_prices(prices: Sequence[str]) -> dict[str, float]:
    """Return the prices per accelerator and hour of texts such as h100-80g=2.5; raises UserMistake."""
    found = {}
    for text in prices:
        name, separator, number = text.partition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not name or not separator or not 0 <= price < float("inf"):
            raise UserMistake(f"--price {text} is not a price per hour: for example --price h100-80g=2.5")
        found[name] = price
    return found


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Hold what the command line says; None leaves the manifest's word, or the planner's choice."""

    accelerator: str | None = None
    memory: str | None = None
    count: int | None = None
    dtype: str = "auto"
    revision: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    rate: float | None = None
    shared_prefix: float | None = None
    objective: str | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    kv_cache_dtype: str | None = None
    weights: str | None = None
    quality: Path | None = None
    max_kl: float | None = None
    pinned: PinnedKnobs = field(default=PinnedKnobs())


def override(subject: Subject, flags: Flags) -> Subject:
    """Return a subject with the flags that were given; raises UserMistake or CannotPlan."""
    subject = _override_accelerator(subject, flags)
    pinned = {key: value for key, value in asdict(flags.pinned).items() if value is not None}
    allowed = subject.allowed
    if flags.kv_cache_dtype is not None:
        names = parse_list("--kv-cache-dtype", flags.kv_cache_dtype)
        allowed = replace(allowed, kv_cache=names, kv_cache_is_fixed=True)
    if flags.weights is not None:
        allowed = replace(allowed, weights=parse_list("--weights", flags.weights), weights_are_fixed=True)
    return replace(
        subject,
        revision=flags.revision or subject.revision,
        dtype=flags.dtype,
        workload=_override_workload(subject.workload, flags),
        objective=subject.objective if flags.objective is None else Objective(flags.objective),
        pinned=replace(subject.pinned, **pinned),
        allowed=allowed,
        gate=_override_gate(subject, flags),
    )


def _override_gate(subject: Subject, flags: Flags) -> QualityGate:
    max_kl_nats = subject.gate.max_kl_nats if flags.max_kl is None else flags.max_kl
    if flags.quality is None:
        return replace(subject.gate, max_kl_nats=max_kl_nats)
    return read_quality(flags.quality, model=subject.model, max_kl_nats=max_kl_nats)


def _override_accelerator(subject: Subject, flags: Flags) -> Subject:
    """Another accelerator brings its own memory, unless a flag says that too."""
    if flags.accelerator is not None:
        subject = replace(subject, accelerator=flags.accelerator, memory_bytes=None)
    if flags.memory is not None:
        subject = replace(subject, memory_bytes=parse_memory("--memory", flags.memory))
    return subject if flags.count is None else replace(subject, count=flags.count)


def _override_workload(workload: Workload, flags: Flags) -> Workload:
    return replace(
        workload,
        prompt_tokens=parse_lengths("--prompt-tokens", flags.prompt_tokens) or workload.prompt_tokens,
        output_tokens=parse_lengths("--output-tokens", flags.output_tokens) or workload.output_tokens,
        rate_per_s=workload.rate_per_s if flags.rate is None else flags.rate,
        shared_prefix=workload.shared_prefix if flags.shared_prefix is None else flags.shared_prefix,
        ttft_s=workload.ttft_s if flags.ttft_ms is None else flags.ttft_ms / 1000,
        itl_s=workload.itl_s if flags.itl_ms is None else flags.itl_ms / 1000,
    )
