"""The words follow from the numbers."""

from dataclasses import replace

import pytest

from pagefleet.capacity.bottleneck import MeasuredLoad, find_bottleneck, sentences
from pagefleet.capacity.step_time import StepTime

# 100 MB at 10 GB/s are 10 ms of the base; 0.1 GFLOP at 100 GFLOP/s are 1 ms of a sequence; 200 tokens are 0.2 ms.
LOAD = MeasuredLoad(
    step=StepTime(base_s=0.012, prefill_token_s=0.001, kv_token_s=1e-6, sequence_s=0.0015),
    sequences=4,
    most_sequences=64,
    prompt_tokens=160,
    output_tokens=80,
    weight_bytes=1e8,
    flop_per_token=1e8,
    gemm_flop_per_s=1e11,
    stream_bytes_per_s=1e10,
    int8_weight_bytes=2.5e7,
    int8_kv_share=0.5,
    missing=("int8 KV cache",),
)


def test_a_step_is_split_into_all_of_its_parts() -> None:
    found = find_bottleneck(LOAD)
    assert found.step_s == pytest.approx(0.012 + 4 * 0.0017)
    assert found.weights_s == pytest.approx(0.010)
    assert found.kv_s == pytest.approx(0.0008)
    assert found.products_s == pytest.approx(0.004)
    assert found.overhead_s == pytest.approx(0.012 - 0.010 + 4 * 0.0005)
    # 160 ms of prefill beside 80 x (3 + 1.7) ms of decode
    assert found.prefill_share == pytest.approx(0.160 / (0.160 + 80 * 0.0047))


@pytest.mark.parametrize(
    ("changes", "bound", "words"),
    [
        ({}, "memory", "It is memory-bound."),
        ({"sequences": 32}, "compute", "It is compute-bound."),
        ({"weight_bytes": 1e6, "flop_per_token": 1e6}, "overhead", "It is latency-bound"),
        ({"stream_bytes_per_s": None, "gemm_flop_per_s": None}, "overhead", "bandwidth is not known"),
    ],
)
def test_the_largest_part_binds(changes: dict[str, object], bound: str, words: str) -> None:
    load = replace(LOAD, **changes)  # type: ignore[arg-type]
    found = find_bottleneck(load)
    assert found.bound == bound
    assert words in sentences(load, found)[1]


def test_the_turning_point_is_where_products_take_as_long_as_memory() -> None:
    turn = find_bottleneck(LOAD).turning_point or 0.0
    assert turn == pytest.approx(0.010 / (0.001 - 0.0002))
    at_turn = find_bottleneck(replace(LOAD, sequences=round(turn)))
    assert at_turn.products_s == pytest.approx((at_turn.weights_s or 0) + at_turn.kv_s, rel=0.05)
    assert (
        "at 12 sequences per step, with 200 tokens of context: now it is below"
        in sentences(LOAD, find_bottleneck(LOAD))[2]
    )


def test_where_the_cache_takes_longer_than_products_nothing_turns() -> None:
    load = replace(LOAD, step=replace(LOAD.step, kv_token_s=1e-5))
    found = find_bottleneck(load)
    assert found.turning_point is None
    assert sentences(load, found)[2].startswith("With 200 tokens of context it stays memory-bound at any batch")


def test_gains_are_ratios_of_requests_and_the_largest_is_first() -> None:
    gains = {gain.change: gain for gain in find_bottleneck(LOAD).gains}
    now_s = 0.160 + 80 * (0.012 / 4 + 0.0017)
    expected = {
        "64 sequences per step instead of 4": now_s / (0.160 + 80 * (0.012 / 64 + 0.0017)),
        "int8 weights": now_s / (0.160 + 80 * (0.0045 / 4 + 0.0017)),
        "int8 KV cache": now_s / (0.160 + 80 * (0.012 / 4 + 0.0016)),
        "less overhead: Python, attention, waits": now_s / (0.160 + 80 * (0.010 / 4 + 0.0012)),
    }
    assert {name: gain.ratio for name, gain in gains.items()} == pytest.approx(expected)
    ratios = [gain.ratio for gain in find_bottleneck(LOAD).gains]
    assert ratios == sorted(ratios, reverse=True)
    assert gains["int8 KV cache"].remark == "not in this engine yet"
    lines = sentences(LOAD, find_bottleneck(LOAD))
    assert lines[4] == f"  1. 64 sequences per step instead of 4: {ratios[0]:.2f} x the requests/s"


def test_what_is_in_use_or_has_no_room_is_not_offered() -> None:
    load = replace(LOAD, most_sequences=4, int8_weight_bytes=None, int8_kv_share=None, stream_bytes_per_s=None)
    assert find_bottleneck(load).gains == ()
    assert sentences(load, find_bottleneck(load))[-1] == "No knob that was looked at gains 1 %."


def test_of_a_cached_token_only_reading_it_is_memory() -> None:
    found = find_bottleneck(replace(LOAD, kv_bytes_per_token=8000.0))  # 0.8 us of the 1 us
    assert found.kv_s == pytest.approx(0.00064)
    assert found.overhead_s == pytest.approx(find_bottleneck(LOAD).overhead_s + 0.00016)
    now_s = 0.160 + 80 * (0.012 / 4 + 0.0017)
    gains = {gain.change: gain.ratio for gain in found.gains}
    assert gains["int8 KV cache"] == pytest.approx(now_s / (0.160 + 80 * (0.012 / 4 + 0.0015 + 200 * 0.6e-6)))
