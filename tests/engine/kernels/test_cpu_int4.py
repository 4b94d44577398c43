"""4-bit weights: back ends equal the reference, with the same bits for any batch; what cannot be rounded says so."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.int4_linear import CpuInt4Linear
from pagefleet.engine.kernels.int4 import make_int4_kernel, round_to_int4, use_int4_backend
from pagefleet.engine.layers.int4 import Int4Weight, dequantize, pack_numbers, unpack_words
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.int4_rounding import group_size, round_groups
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.llm import LLM
from pagefleet.engine.models.decoder_layer import DecoderLayer, LayerLoader
from pagefleet.engine.sampling_params import SamplingParameters
from tests.engine.kernels.test_cpu_linear import ROWS, random
from tests.support.tiny_models import make_tiny_llama

OUTPUTS = 148
DTYPES = [torch.float32, torch.bfloat16]
GREEDY = SamplingParameters(max_tokens=8, temperature=0.0, ignore_eos=True)


def make_weight(inputs: int = 96, group: int = 32, *, is_ordered: bool = False, outputs: int = OUTPUTS) -> Int4Weight:
    """Return random numbers, scales of both signs, and zero points up to 16."""
    generator = torch.Generator().manual_seed(inputs)
    numbers = torch.randint(0, 16, (outputs, inputs), generator=generator)
    zeros = torch.randint(0, 17, (outputs, inputs // group), generator=generator).to(torch.uint8)
    order = torch.randperm(inputs, generator=generator) if is_ordered else None
    return Int4Weight(pack_numbers(numbers), random(outputs, inputs // group) / inputs, zeros, order)


def make_twin(dtype: torch.dtype, *, has_bias: bool = False, is_ordered: bool = False) -> TorchInt4Linear:
    bias = random(OUTPUTS, dtype=dtype, seed=2) if has_bias else None
    return TorchInt4Linear(make_weight(is_ordered=is_ordered), bias, dtype)


def test_words_hold_the_numbers() -> None:
    numbers = torch.arange(16).repeat(3, 2)
    words = pack_numbers(numbers)
    assert words.tolist()[0][:2] == [0x76543210, 0xFEDCBA98 - 2**32]
    assert torch.equal(unpack_words(words).long(), numbers)


def test_what_a_weight_stands_for() -> None:
    numbers = torch.tensor([[3, 15, *[0] * 30, 7, *[0] * 31]])
    weight = Int4Weight(
        pack_numbers(numbers), torch.tensor([[0.5, -2.0]]), torch.tensor([[1, 16]], dtype=torch.uint8), None
    )
    values = dequantize(weight)[0]
    assert values[[0, 1, 2, 32]].tolist() == [1.0, 7.0, -0.5, 18.0]
    order = torch.arange(64).flip(0)
    ordered = dequantize(Int4Weight(weight.words, weight.scales, weight.zeros, order))[0]
    assert torch.equal(ordered, values.flip(0))


def test_rounding_is_near_and_keeps_the_ends() -> None:
    weight = random(300, 256)
    rounded = round_groups(weight, 128)
    groups = weight.view(300, 2, 128)
    spread = groups.amax(-1) - groups.amin(-1)
    error = dequantize(rounded).view_as(groups) - groups
    assert (error.square().mean(-1).sqrt() <= spread / 15 / 12**0.5 * 1.15).all()
    assert rounded.nbytes * 8 == weight.numel() * 4.3125
    exact = torch.linspace(-7, 8, 16).repeat(4, 8)
    assert torch.allclose(dequantize(round_groups(exact, 128)), exact)


def test_rounding_of_what_is_constant_or_not_finite() -> None:
    weight = torch.zeros(5, 32)
    weight[1], weight[2], weight[3, 0], weight[4, 5] = 3.0, -3.0, torch.inf, torch.nan
    values = dequantize(round_groups(weight, 32))
    assert torch.allclose(values[:3], weight[:3])
    assert not values[3:].isfinite().any(), "what is not finite shows in the outputs"


@pytest.mark.parametrize(("inputs", "group"), [(256, 128), (576, 64), (96, 32), (48, None), (100, None)])
def test_the_largest_group_that_divides(inputs: int, group: int | None) -> None:
    assert group_size(inputs) == group


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("has_bias", "is_ordered"), [(False, False), (True, True)])
def test_every_epilogue(dtype: torch.dtype, has_bias: bool, is_ordered: bool) -> None:
    twin = make_twin(dtype, has_bias=has_bias, is_ordered=is_ordered)
    kernel, gated = make_int4_kernel(twin, is_gated=False), make_int4_kernel(twin, is_gated=True)
    assert isinstance(kernel, CpuInt4Linear)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for rows in ROWS:
        inputs, residual = random(rows, 96, dtype=dtype), random(rows, OUTPUTS, dtype=dtype, seed=3)
        for actual, expected in (
            (kernel(inputs), twin(inputs)),
            (kernel.wide(inputs), twin.wide(inputs)),
            (kernel.add_to(residual.clone(), inputs), twin.add_to(residual, inputs)),
            (gated.swiglu(inputs), twin.swiglu(inputs)),
        ):
            assert actual.dtype == expected.dtype
            assert torch.allclose(actual.float(), expected.float(), atol=tolerance, rtol=tolerance), rows


@pytest.mark.parametrize(("inputs", "group"), [(32, 32), (64, 64), (384, 128), (1152, 64), (4096, 4096)])
@pytest.mark.parametrize("outputs", [1, 16, 77])
def test_any_depth_and_width(inputs: int, group: int, outputs: int) -> None:
    weight, rows = make_weight(inputs, group, outputs=outputs), random(9, inputs)
    expected = linear(rows.double(), dequantize(weight).double()).float()
    twin = TorchInt4Linear(weight, None, torch.float32)
    assert torch.allclose(twin.wide(rows), expected, atol=1e-5)
    assert torch.allclose(make_int4_kernel(twin, is_gated=False).wide(rows), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_gives_the_same_bits(dtype: torch.dtype) -> None:
    kernel = make_int4_kernel(make_twin(dtype, is_ordered=True), is_gated=False)
    inputs = random(700, 96, dtype=dtype)
    together = kernel.wide(inputs)
    for first, end in ((0, 1), (5, 7), (10, 13), (3, 67), (400, 700)):
        assert torch.equal(kernel.wide(inputs[first:end]), together[first:end])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_stays_so_and_alone(value: float) -> None:
    twin = make_twin(torch.float32)
    for kernel in (twin, make_int4_kernel(twin, is_gated=False)):
        inputs = random(5, 96)
        clean = kernel.wide(inputs)
        inputs[2, 69] = value
        spoilt = kernel.wide(inputs)
        assert not spoilt[2].isfinite().all()
        assert torch.equal(spoilt[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_memory_is_a_seventh_and_is_let_go() -> None:
    linears = [Linear(random(256, 512)), Linear(random(128, 256), random(128))]
    before = sum(each.nbytes for each in linears)
    assert round_to_int4(linears) == []
    assert use_int4_backend("auto", linears) == "c"
    assert sum(each.nbytes for each in linears) < 0.14 * before
    assert all(isinstance(each.kernel, CpuInt4Linear) and each.weight is None for each in linears)


def test_what_no_group_divides_keeps_its_precision(caplog: pytest.LogCaptureFixture) -> None:
    odd, even = Linear(random(8, 48)), Linear(random(8, 64))
    assert round_to_int4([odd, even]) == [odd]
    assert odd.weight is not None
    assert "1 linears keep their precision: their 48 inputs are no multiple of 32" in caplog.text
    with pytest.raises(StartupError, match="no linear has inputs in multiples of 32; use --quantization int8"):
        round_to_int4([Linear(random(8, 40))])


def test_a_layer_is_rounded_before_the_next_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_llama(tmp_path, heads=4, kv_heads=2, hidden=64, head_dim=16, layers=3)
    load, loaded = LayerLoader.load, list[DecoderLayer]()

    def watch(loader: LayerLoader, prefix: str) -> DecoderLayer:
        assert all(linear.weight is None for layer in loaded for _, linear in layer.linears)
        loaded.append(load(loader, prefix))
        return loaded[-1]

    monkeypatch.setattr(LayerLoader, "load", watch)
    LLM(EngineConfig(model=str(folder), quantization="int4", kv_cache_memory_bytes=2**22, threads=1))
    assert len(loaded) == 3


def test_an_engine_says_the_same_with_both_back_ends(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, heads=4, kv_heads=2, hidden=64, head_dim=16, weight_scale=0.3)
    prompts = [[5], list(range(40)), list(range(100, 170))]
    tokens = []
    for name in ("c", "torch"):
        config = EngineConfig(
            model=str(folder), quantization="int4", linear_backend=name, kv_cache_memory_bytes=2**22, threads=1
        )
        llm = LLM(config)
        assert (llm.core.info.quantization, llm.core.info.linear_backend) == ("int4", name)
        tokens.append([generation.token_ids for generation in llm.generate(prompts, GREEDY)])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model_impl": "transformers"}, "this model keeps its own linears; use --quantization none"),
        ({"linear_backend": "onednn"}, "--linear-backend onednn has no 4-bit weights; use auto, c, triton or torch"),
    ],
    ids=str,
)
def test_refusals(tmp_path: Path, options: dict[str, object], sentence: str) -> None:
    folder = make_tiny_llama(tmp_path, heads=4, kv_heads=2)
    settings = {"quantization": "int4", "kv_cache_memory_bytes": 2**22, **options}
    with pytest.raises(StartupError, match=sentence):
        LLM(EngineConfig(model=str(folder), **settings))  # type: ignore[arg-type]
