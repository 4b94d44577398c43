"""Bad input: one sentence with the wrong value and one that works."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet.capacity import CannotPlan, DoesNotFit, Lengths, Workload, find_accelerator, read_model
from pagefleet.capacity.accelerators import GIB
from tests.autoscaler.builders import FUTURE_CUDA, SMALL_CONFIG, SMALL_HEADERS, plan
from tests.support import checkpoints

KEY = "model.layers.0.self_attn.k_proj.weight"


def without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda config: config.pop(key)


def changed(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config.update(values)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without("model_type"), "has no model_type"),
        (changed(model_type="perceiver"), "model type perceiver is unknown to the planner: known are decoders such as"),
        (changed(model_type="llava"), "type llava but has no text_config"),
        (without("num_hidden_layers"), "config.json has no num_hidden_layers"),
        (without("num_key_value_heads"), "no num_key_value_heads, .* 4 query heads, .* for example 1, or 4"),
        (changed(num_key_value_heads=3), "num_key_value_heads in config.json is 3, which does not divide the 4 query"),
        (
            changed(num_key_value_heads=4),
            "4 heads of 16 .*k_proj.weight has 32 rows, not 64: write num_key_value_heads: 2",
        ),
        (changed(head_dim=32), "4 heads of 32 .*q_proj.weight has 64 rows, not 128: write num_attention_heads: 2"),
        (changed(head_dim=None, hidden_size=66), "hidden_size 66 .* no multiple of 4 heads, .* write head_dim, .* 16"),
        (changed(num_hidden_layers=3), "num_hidden_layers in config.json is 3, but the weights have 2 layers"),
        (changed(num_hidden_layers=10**9), "num_hidden_layers in config.json is 1000000000"),
        (changed(vocab_size=300), "vocab_size in config.json is 300, but the embedding table has 256 rows"),
        (changed(hidden_size="wide"), "hidden_size in config.json is 'wide': it must be a whole number from 1 on"),
        (changed(hidden_size=-1), "hidden_size in config.json is -1"),
        (changed(layer_types=["full_attention"]), "must list num_hidden_layers 2 layers"),
        (changed(layer_types=["mamba", "full_attention"]), "layers of type mamba"),
        (changed(layer_types=["sliding_attention"] * 2), "no sliding_window: for example 4096"),
        (changed(num_experts=8, num_experts_per_tok=9), "num_experts_per_tok in config.json is 9, more than the 8"),
    ],
)
def test_configurations(change: Callable[[dict[str, Any]], object], sentence: str) -> None:
    config = copy.deepcopy(SMALL_CONFIG)
    change(config)
    with pytest.raises(CannotPlan, match=sentence) as refusal:
        read_model("m", config, SMALL_HEADERS)
    assert "\n" not in str(refusal.value)


def test_heads_times_their_size_need_not_be_the_hidden_size() -> None:
    config, headers = checkpoints.qwen3_0_6b()  # 16 heads of 128 numbers, hidden size 1024
    architecture = read_model("m", config, headers).architecture
    assert architecture.query_heads * architecture.head_dim == 2 * architecture.hidden_size


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = (*SMALL_CONFIG, "text_config", "layer_types", "sliding_window", "num_experts", "quantization_config")


@settings(max_examples=150, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3), entry=JSON, spoils_header=st.booleans())
def test_nothing_but_sentences(changes: dict[str, Any], entry: Any, spoils_header: bool) -> None:
    headers = [{**SMALL_HEADERS[0], **({KEY: entry} if spoils_header else {})}]
    sentence = ""
    try:
        model = read_model("m", {**SMALL_CONFIG, **changes}, headers)
        plan(model, workload={"itl_s": 0.05})
    except CannotPlan as refusal:
        sentence = str(refusal)
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda header: header.clear(), "has no safetensors header"),
        (lambda header: header.pop("model.embed_tokens.weight"), "no embedding table, so a file is missing"),
        (lambda header: header[KEY].pop("shape"), f"damaged at {KEY}: it must have dtype"),
        (lambda header: header[KEY].update(dtype="Q9"), f"weight {KEY} has the unknown format Q9"),
        (lambda header: header[KEY].update(shape=[32, 65]), f"damaged at {KEY}: .* takes 4160 bytes, but it says 4096"),
        (lambda header: header[KEY].update(shape=[-32, -64]), f"damaged at {KEY}"),
    ],
)
def test_headers(change: Callable[[dict[str, Any]], object], sentence: str) -> None:
    headers = copy.deepcopy(SMALL_HEADERS)
    change(headers[0])
    with pytest.raises(CannotPlan, match=sentence):
        read_model("m", SMALL_CONFIG, headers)


def test_a_missing_file_of_several() -> None:
    config, (header,) = checkpoints.dense(
        layers=4, hidden=64, intermediate=128, heads=4, kv_heads=2, vocabulary=256, head_dim=16
    )
    front = {name: entry for name, entry in header.items() if "layers.3." not in name}
    with pytest.raises(CannotPlan, match=r"num_hidden_layers .* is 4, but the weights have 3 layers"):
        read_model("m", config, [front])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"accelerator": "h900"}, "accelerator h900 is unknown: known are .*h100-80g"),
        ({"accelerator": "a100"}, "accelerator a100 comes in several sizes: write a100-40g or a100-80g"),
        ({"accelerator": "cpu"}, "accelerator cpu has no memory size: give it, for example 24GiB"),
        ({"accelerator": None}, "accelerator gpu has no memory size"),
        ({"memory_bytes": 24}, "24 bytes of memory are less than 1 MiB: write a unit"),
        ({"kv_cache": ("int7",)}, "KV cache dtype int7 is unknown: write one of auto, "),
        ({"weights": ("int3",)}, "weights int3 is unknown: write one of none, "),
        ({"kv_cache": ()}, "the allow-list names no format"),
        ({"kv_cache": ("auto", "int4"), "block_size": 16}, "block size 16 is illegal for KV cache dtype int4"),
        ({"block_size": 0}, "block size 0 is too small"),
        ({"max_num_seqs": -1}, "max_num_seqs -1 is too small: the smallest is 1, for example 128"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "max_num_batched_tokens 32 is less than max_num_seqs 64"),
        ({"max_model_len": 200_000}, "max_model_len 200000 is longer than the model's context: use at most 131072"),
        ({"max_model_len": 100}, "a mean request of 768 tokens, .*: use a max_model_len of 768 or more"),
        ({"prompt_tokens": 2e5}, "a mean request of 200256 tokens, .*: use shorter requests"),
        ({"gpu_memory_utilization": 1.5}, "a memory utilization of 1.5 is no share"),
        ({"count": 3}, "3 accelerators cannot share the 32 heads of a layer: use 1, 2, 4, 8, 16"),
        ({"count": 0}, "0 accelerators cannot share"),
        ({"dtype": "float16"}, "dtype float16 is unknown: write auto, bfloat16 or float32"),
        ({"prompt_tokens": 0}, "prompt tokens of 0 cannot be planned for"),
        ({"workload": {"itl_s": float("nan")}}, "inter-token latency of nan cannot be planned for"),
        ({"workload": {"shared_prefix": 1.0}}, "a shared prefix of 1 is no share"),
    ],
)
def test_requests(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CannotPlan, match=sentence):
        plan(**options)


def test_an_allow_list_that_excludes_all_that_fits_is_told_what_to_allow() -> None:
    with pytest.raises(DoesNotFit) as refusal:
        plan(memory_bytes=16 * GIB)
    assert "allow weights int8 (not in this engine yet: int8 weights)" in refusal.value.fixes
    assert refusal.value.fixes[0] == "allow weights int4"  # what works today comes first
    with pytest.raises(DoesNotFit) as refusal:
        plan(memory_bytes=16 * GIB, weights=("none", "int8"))
    assert "use weights int8 (not in this engine yet: int8 weights)" in refusal.value.fixes
    with pytest.raises(DoesNotFit) as refusal:
        plan(memory_bytes=16 * GIB, engine=FUTURE_CUDA)
    assert refusal.value.fixes[:2] == ("allow weights int8", "allow weights int4")


def test_speeds_and_histograms() -> None:
    with pytest.raises(CannotPlan, match="a bandwidth of -1 is no speed"):
        find_accelerator("cpu", memory_bytes=GIB, bandwidth_bytes_per_s=-1.0)
    for histogram in ({}, {512: 0.0}, {0: 1.0}, {512: -1.0, 600: 2.0}):
        with pytest.raises(CannotPlan, match="counts no requests"):
            Lengths.of_histogram(histogram)
    assert Workload(prompt_tokens=Lengths.of_histogram({10: 1, 30: 1})).prompt_tokens.mean == 20


def test_a_device_of_one_size_goes_by_its_name() -> None:
    assert find_accelerator("h100") == find_accelerator("h100-80g")
