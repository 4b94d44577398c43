from pathlib import Path

import pytest

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import QueueFull
from pagefleet.engine.llm import LLM
from pagefleet.engine.messages import Accepted, AddRequest, Refused
from pagefleet.engine.prefill_rate import HALF_LIFE_S, PrefillRate
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.scheduler_limits import (
    LONGEST_RETRY_S,
    SchedulerLimits,
    queued_tokens_bound,
    refuse_when_full,
    retry_after_s,
)
from tests.support.sequences import make_scheduler, make_sequence, run_step
from tests.support.tiny_models import make_tiny_llama


def observed(*steps: tuple[int, float, bool]) -> float | None:
    rate = PrefillRate()
    for tokens, duration_s, leaves_prompts in steps:
        rate.observe(tokens, duration_s, leaves_prompts=leaves_prompts)
    return rate.tokens_per_s


def test_nothing_is_known_before_prompts_had_to_wait() -> None:
    assert observed() is None
    assert observed((500, 0.1, False)) is None, "it might have computed more"
    assert observed((0, 0.1, True)) is None, "prompts wait for something else"


def test_the_rate_is_tokens_over_seconds() -> None:
    assert observed((512, 0.25, True)) == pytest.approx(2048)
    assert observed(*[(100, 0.1, True), (0, 0.1, True)] * 5) == pytest.approx(500, rel=0.01), "pauses count"


def test_an_easy_step_raises_the_rate_and_never_lowers_it() -> None:
    busy = (100, 0.1, True)
    assert observed(busy, (5, 0.1, False)) == pytest.approx(1000)
    assert observed(busy, (300, 0.1, False)) == pytest.approx(3000)


def test_old_observations_fade() -> None:
    slow, fast = [(100, 1.0, True)] * 100, [(1000, 1.0, True)] * int(HALF_LIFE_S)
    half_way = observed(*slow, *fast)
    assert half_way == pytest.approx(550, rel=0.02)


@pytest.mark.parametrize(
    ("target_s", "rate", "bound"), [(2.0, 1000.0, 2000), (None, 1000.0, None), (2.0, None, None), (0.001, 10.0, 0)]
)
def test_bound(target_s: float | None, rate: float | None, bound: int | None) -> None:
    assert queued_tokens_bound(target_s, rate) == bound


@pytest.mark.parametrize(
    ("excess", "rate", "seconds"), [(1, 1000.0, 1), (2500, 1000.0, 3), (10**6, 1.0, LONGEST_RETRY_S), (50, None, 1)]
)
def test_retry_after(excess: int, rate: float | None, seconds: int) -> None:
    assert retry_after_s(excess, rate) == seconds


def test_refusal() -> None:
    limits = SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=4000, queue_ttft_target_s=2.0)
    prompt = make_sequence("a", prompt=600)
    refuse_when_full(prompt, limits, requests=3, tokens=1400, tokens_per_s=1000.0)
    refuse_when_full(prompt, limits, requests=3, tokens=10**6, tokens_per_s=None)
    refuse_when_full(prompt, limits, requests=0, tokens=0, tokens_per_s=1.0)
    with pytest.raises(QueueFull, match=r"4000 prompt tokens wait .* 600; at 1000 tokens per second .* in 2 s") as full:
        refuse_when_full(prompt, limits, requests=3, tokens=4000, tokens_per_s=1000.0)
    assert (full.value.reason, full.value.retry_after_s) == ("queue_ttft", 3)


def test_a_step_counts_its_prompt_tokens() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=16)
    scheduler.add(make_sequence("a", prompt=4))
    run_step(scheduler)
    scheduler.add(make_sequence("b", prompt=20))
    first = scheduler.schedule(0.0)
    assert (first.prefill_tokens, first.leaves_prompts) == (8, True)
    scheduler.finish_step(first, {"a": 5})
    last = scheduler.schedule(0.0)
    assert (last.prefill_tokens, last.leaves_prompts) == (8, True)


def test_an_engine_bounds_its_queue_by_what_it_has_measured(tmp_path: Path) -> None:
    config = EngineConfig(
        model=str(make_tiny_llama(tmp_path)),
        kv_cache_memory_bytes=2**22,
        max_num_batched_tokens=32,
        max_num_seqs=1,
        threads=1,
        enable_prefix_caching=False,
        queue_ttft_target_s=0.001,
    )
    core = LLM(config).core
    requests = [
        AddRequest(
            request_id=name, prompt_token_ids=[7] * 400, sampling=SamplingParameters(max_tokens=2, temperature=0.0)
        )
        for name in "abcd"
    ]
    assert isinstance(core.add(requests[0]), Accepted)
    assert isinstance(core.add(requests[1]), Accepted), "nothing is measured yet"
    core.step()
    assert core.scheduler.prefill_rate.tokens_per_s is not None
    refused = core.add(requests[2])
    assert isinstance(refused, Refused)
    assert (refused.reason, 1 <= (refused.retry_after_s or 0) <= LONGEST_RETRY_S) == ("queue_ttft", True)
    while core.has_work():
        core.step()
    assert isinstance(core.add(requests[3]), Accepted), "an empty queue takes any"
