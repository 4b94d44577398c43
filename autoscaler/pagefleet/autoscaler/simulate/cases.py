"""The workloads on which policies are compared, and the policies with the targets that are tried."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pagefleet.autoscaler.decision_record import Record
from pagefleet.autoscaler.settings import ServiceSpeed, Settings
from pagefleet.autoscaler.simulate.fleet import Conditions, Policy
from pagefleet.autoscaler.simulate.policies.aibrix import Apa
from pagefleet.autoscaler.simulate.policies.dynamo import Load, Throughput
from pagefleet.autoscaler.simulate.policies.fixed import Clairvoyant, Static
from pagefleet.autoscaler.simulate.policies.hpa import Hpa, Keda, in_flight, occupancy, waiting
from pagefleet.autoscaler.simulate.policies.kpa import Kpa
from pagefleet.autoscaler.simulate.policies.ours import LeadTimeCapacity
from pagefleet.autoscaler.simulate.policies.wva import SaturationV1, SaturationV2
from pagefleet.autoscaler.simulate.readiness import Readiness, quick_start_s
from pagefleet.autoscaler.simulate.replica import EngineModel
from pagefleet.autoscaler.simulate.trace_files import read_azure, read_mooncake, read_rates
from pagefleet.autoscaler.simulate.workload import (
    Workload,
    from_rates,
    lognormal_lengths,
    normal_lengths,
    repeated,
)
from pagefleet.capacity.step_time import StepTime, serve
from pagefleet.capacity.workload import Lengths
from pagefleet.capacity.workload import Workload as PlannedLoad

LARGE_MODEL = EngineModel(
    step=StepTime(base_s=0.018, prefill_token_s=79e-6, kv_token_s=35e-9, sequence_s=20e-6), kv_tokens=410_000
)
"""A 70B model on four H100, by the planner's priors."""
CASE_NAMES = ("conv x 6", "code x 4", "day 3", "day 9", "prefill step", "mooncake")
OURS = "pagefleet"
DAY_SPEEDUP = 6
DAY_RATE_PER_S = 25.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One workload and the conditions that it meets."""

    name: str
    workload: Workload
    conditions: Conditions
    router: str = "least-requests"
    """One of `ROUTERS`."""
    readiness: Readiness = field(default_factory=Readiness)


def acceptance_cases(traces: Path, *, engine: EngineModel = LARGE_MODEL, seed: int = 0) -> Iterator[Case]:
    """Yield the six cases of the acceptance suite, reading traces as they are needed."""
    conv = read_azure(traces / "AzureLLMInferenceTrace_conv.csv")
    days = read_rates(traces / "servegen_m-large_rate_10min.csv")
    makers: dict[str, tuple[Callable[[], Workload], int]] = {
        "conv x 6": (lambda: repeated(conv, 6, seed=seed), 6),
        "code x 4": (lambda: repeated(read_azure(traces / "AzureLLMInferenceTrace_code.csv"), 4, seed=seed), 4),
        "day 3": (lambda: _day(days, 3, conv, seed=seed), 5),
        "day 9": (lambda: _day(days, 9, conv, seed=seed), 5),
        "prefill step": (lambda: prefill_step(seed=seed), 2),
        "mooncake": (lambda: read_mooncake(traces / "mooncake_conversation_trace.jsonl"), 5),
    }
    for name in CASE_NAMES:
        make, initial_replicas = makers[name]
        conditions = Conditions(engine=engine, initial_replicas=initial_replicas, seed=seed)
        yield Case(name=name, workload=make(), conditions=conditions)


def trace_case(path: Path, *, times: int, initial_replicas: int, max_replicas: int, seed: int) -> Case:
    """Return one recorded trace as a case; raises UnreadableTrace."""
    workload = read_mooncake(path) if path.suffix == ".jsonl" else read_azure(path)
    if times > 1:
        workload = repeated(workload, times, seed=seed)
    conditions = Conditions(engine=LARGE_MODEL, initial_replicas=initial_replicas, max_replicas=max_replicas, seed=seed)
    return Case(name=workload.name, workload=workload, conditions=conditions)


def chats_case(
    rates: Sequence[tuple[float, float]],
    *,
    prompt_tokens: float,
    output_tokens: float,
    initial_replicas: int,
    max_replicas: int,
    seed: int,
) -> Case:
    """Return generated chats along stretches of (seconds, requests per second), of log-normal lengths."""
    lengths = lognormal_lengths(5000, prompt_mean=prompt_tokens, output_mean=output_tokens, sigma=0.8, seed=seed)
    conditions = Conditions(engine=LARGE_MODEL, initial_replicas=initial_replicas, max_replicas=max_replicas, seed=seed)
    return Case(name="chats", workload=from_rates("chats", rates, lengths, seed=seed), conditions=conditions)


def generated_case(*, seed: int) -> Case:
    """Return the case that needs no trace: long prompts at three times the rate for half an hour."""
    conditions = Conditions(engine=LARGE_MODEL, initial_replicas=2, seed=seed)
    return Case(name="prefill step", workload=prefill_step(seed=seed), conditions=conditions)


def prefill_step(*, seed: int) -> Workload:
    """Generate long prompts at 3 requests per second, 10 for half an hour, and 3 again."""
    lengths = normal_lengths(5000, prompt=(4000, 800, 500), output=(200, 60, 20), seed=seed)
    return from_rates("prefill step", [(600, 3.0), (1800, 10.0), (1200, 3.0)], lengths, seed=seed, variation=1.0)


def _day(rates: list[tuple[float, float]], day: int, lengths: Workload, *, seed: int) -> Workload:
    """Play one day of 10-minute rates in four hours, scaled to a mean of 25 requests per second."""
    of_day = rates[144 * day : 144 * (day + 1)]
    mean = sum(rate for _, rate in of_day) / len(of_day)
    stretches = [(seconds / DAY_SPEEDUP, rate * DAY_RATE_PER_S / mean) for seconds, rate in of_day]
    return from_rates(f"day {day}", stretches, lengths.arrivals, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One policy with one choice of its target."""

    family: str
    setting: str
    make: Callable[[], Policy]
    cold_start_s: tuple[float, float] | None = None
    """Least and most seconds of a start, where they are not the case's."""

    @property
    def name(self) -> str:
        """Return family and setting."""
        return f"{self.family} {self.setting}".strip()


def our_settings(case: Case, *, speed_error: float = 0.0) -> Settings:
    """Return the settings of our policy; `speed_error` is how much too fast the plan believes the engine to be."""
    engine = case.conditions.engine
    return Settings(
        speed=ServiceSpeed(
            step=engine.step.times(1 / (1 + speed_error)),
            kv_tokens=engine.kv_tokens,
            block_size=engine.block_size,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
        ),
        max_replicas=case.conditions.max_replicas,
        ttft_slo_s=case.conditions.ttft_slo_s,
        itl_slo_s=case.conditions.itl_slo_s,
        lead_time_s=case.conditions.cold_start_s[1],
    )


def service_rate(case: Case) -> float:
    """Return the requests per second that one replica serves within the objectives, for the case's mean lengths."""
    arrivals, engine = case.workload.arrivals, case.conditions.engine
    load = PlannedLoad(
        prompt_tokens=Lengths(sum(arrival.prompt_tokens for arrival in arrivals) / len(arrivals)),
        output_tokens=Lengths(sum(arrival.output_tokens for arrival in arrivals) / len(arrivals)),
        itl_s=case.conditions.itl_slo_s,
    )
    service = serve(
        engine.step,
        load,
        kv_tokens=engine.kv_tokens,
        block_size=engine.block_size,
        max_num_seqs=engine.max_num_seqs,
        chunk=engine.max_num_batched_tokens,
    )
    assert service.requests_per_s is not None  # noqa: S101
    return service.requests_per_s


def our_candidate(case: Case, *, speed_error: float = 0.0, log: Callable[[Record], None] | None = None) -> Candidate:
    """Return our policy; `log` gets each of its decisions."""
    settings = our_settings(case, speed_error=speed_error)
    setting = f"speed {speed_error:+.0%}" if speed_error else ""
    make = partial(LeadTimeCapacity, settings, name=case.name, log=log)
    return Candidate(family=OURS, setting=setting, make=make)


def readiness_candidates(case: Case) -> list[Candidate]:
    """Return our policy with each thing that lets a surge find replicas ready."""
    settings, ready, found = our_settings(case), case.readiness, []

    def add(what: str, setting: str, cold_start_s: tuple[float, float] | None = None, **changes: Any) -> None:
        make = partial(LeadTimeCapacity, replace(settings, **changes))
        family = f"{OURS} + {what}"
        found.append(Candidate(family=family, setting=setting, make=make, cold_start_s=cold_start_s))

    if ready.hints:
        told = ", ".join(f"{hint.min_replicas} from {hint.begin}" for hint in ready.hints)
        add("hints", told, schedule=ready.hints)
    if ready.spare_replicas:
        add("spare", f"{ready.spare_replicas}", spare_replicas=ready.spare_replicas)
    if ready.start_s is not None:
        start_s = quick_start_s(case.conditions, ready.start_s)
        add("start", f"{ready.start_s:g} s", start_s, lead_time_s=ready.start_s)
    return found


def clairvoyant_candidates(case: Case) -> list[Candidate]:
    """Return the bound that knows the future, at three loads."""
    rate, lead_time_s = service_rate(case), case.conditions.cold_start_s[1]
    return [
        Candidate(
            family="clairvoyant",
            setting=f"load {share}",
            make=partial(Clairvoyant, case.workload, requests_per_s=rate, lead_time_s=lead_time_s, load_share=share),
        )
        for share in (0.75, 0.85, 0.95)
    ]


def static_candidates() -> list[Candidate]:
    """Return fixed numbers of replicas: what somebody who knew the whole load beforehand could have set."""
    return _swept("static", tuple(range(3, 15)), lambda replicas: Static(int(replicas)))


def baseline_candidates(case: Case) -> list[Candidate]:
    """Return the field's policies, each with the targets that are tried."""
    engine, rate = case.conditions.engine, service_rate(case)
    seqs, size = engine.max_num_seqs, engine.block_size
    found = [
        *_swept("HPA KV", (0.1, 0.2, 0.3, 0.5, 0.7), lambda target: Hpa([(occupancy, target)])),
        *_swept("HPA waiting", (2, 5, 10), lambda target: Hpa([(waiting, target)])),
        *_swept("HPA in-flight", (5, 7, 10, 20, 30, 40, 50, 60, 70, 80), lambda target: Hpa([(in_flight, target)])),
        *_swept("KEDA max", (0.3, 0.5, 0.7), lambda target: Keda([(occupancy, target), (waiting, 5)])),
        *_swept("KPA", (5, 10, 20, 30, 40, 50), Kpa),
        *_swept("AIBrix APA", (0.3, 0.5), lambda target: Apa(occupancy, target)),
        *_swept("Dynamo throughput", (0.7, 0.85, 1.0), lambda share: Throughput(rate * share)),
    ]
    for mode in ("latency", "throughput"):
        found.append(Candidate(family="Dynamo load", setting=mode, make=partial(Load, mode, block_size=size)))
    for up_s, down_s in ((0.0, 300.0), (240.0, 240.0)):
        windows = {"up_window_s": up_s, "down_window_s": down_s}
        setting = f"{up_s:.0f}/{down_s:.0f} s"
        found.append(Candidate(family="WVA V1", setting=setting, make=partial(SaturationV1, **windows)))
        found += [
            Candidate(
                family="WVA V2",
                setting=f"{load:g}, {setting}",
                make=partial(SaturationV2, **windows, block_size=size, max_num_seqs=seqs, up_load=load),
            )
            for load in (0.3, 0.5, 0.7, 0.85, 1.0)
        ]
    return found


def _swept(family: str, targets: tuple[float, ...], make: Callable[[float], Policy]) -> list[Candidate]:
    return [Candidate(family=family, setting=f"{target:g}", make=partial(make, target)) for target in targets]
