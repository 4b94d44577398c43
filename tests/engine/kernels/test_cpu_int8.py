"""8-bit weights: back ends equal the reference, with the same bits for any batch; what cannot be rounded says so."""

from pathlib import Path

import pytest
import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu.int8 import make_int8_kernel, use_int8
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.layers.quantized import INPUT_GROUP, MOST, STEPS, quantize_inputs, quantize_rows
from pagefleet.engine.llm import LLM
from pagefleet.engine.quantization import PARTS
from pagefleet.engine.sampling_params import SamplingParameters
from tests.engine.kernels.test_cpu_linear import ROWS, make_linear, random
from tests.support.tiny_families import FAMILIES, family_config
from tests.support.tiny_models import make_tiny_llama, save_random_model

INPUTS, OUTPUTS = 300, 148
DTYPES = [torch.float32, torch.bfloat16]
GREEDY = SamplingParameters(max_tokens=8, temperature=0.0, ignore_eos=True)


def test_rounding() -> None:
    rows = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [1.0, torch.inf, 0.0], [1.0, torch.nan, 0.0]])
    rounded = quantize_rows(rows)
    assert rounded.integers.tolist()[:2] == [[64, -127, 32], [0, 0, 0]]
    assert rounded.scales.tolist()[:2] == [pytest.approx(2 / MOST), 0.0]
    assert not rounded.scales[2:].isfinite().any(), "what is not finite shows in the outputs"


def test_rounding_of_inputs_covers_their_own_range() -> None:
    rows = torch.tensor([[1.0, -0.27, 0.5], [2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, torch.inf, 0.0]])
    integers, scales = quantize_inputs(rows)
    assert integers.tolist()[:3] == [[200, -54, 100], [254, 127, 0], [0, 0, 0]]
    assert scales.tolist()[:3] == pytest.approx([1.27 / STEPS, 2 / STEPS, 0])
    assert not scales[3].isfinite()
    many, _ = quantize_inputs(random(4000, 7) * torch.linspace(0.1, 3, 7))
    spread = many.amax(-1).clamp(min=0) - many.amin(-1).clamp(max=0)
    assert spread.max() <= 255, "a byte holds a row"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_epilogue(dtype: torch.dtype, has_bias: bool) -> None:
    plain = make_linear(dtype, inputs=INPUTS, has_bias=has_bias)
    gated = make_linear(dtype, inputs=INPUTS, has_bias=has_bias, is_gated=True)
    kernel, reference = make_int8_kernel("c", plain), make_int8_kernel("torch", plain)
    gated_kernel, gated_reference = make_int8_kernel("c", gated), make_int8_kernel("torch", gated)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for rows in ROWS:
        inputs, residual = random(rows, INPUTS, dtype=dtype), random(rows, OUTPUTS, dtype=dtype, seed=3)
        for actual, expected in (
            (kernel(inputs), reference(inputs)),
            (kernel.wide(inputs), reference.wide(inputs)),
            (kernel.add_to(residual.clone(), inputs), reference.add_to(residual, inputs)),
            (gated_kernel.swiglu(inputs), gated_reference.swiglu(inputs)),
        ):
            assert actual.dtype == expected.dtype
            assert torch.allclose(actual.float(), expected.float(), atol=tolerance, rtol=tolerance), rows


@pytest.mark.parametrize("inputs", [1, 2, 3, 64, 71, 128, 129, 131, 400])
def test_any_depth(inputs: int) -> None:
    weight, rows = random(40, inputs, seed=1), random(9, inputs) + torch.linspace(-3, 3, 9)[:, None]
    expected = make_int8_kernel("torch", Linear(weight)).wide(rows)
    assert torch.allclose(make_int8_kernel("c", Linear(weight)).wide(rows), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_gives_the_same_bits(dtype: torch.dtype) -> None:
    kernel = make_int8_kernel("c", make_linear(dtype, inputs=INPUTS))
    inputs = random(700, INPUTS, dtype=dtype)
    together = kernel.wide(inputs)
    for first, end in ((0, 1), (5, 7), (10, 13), (3, 67), (400, 700)):
        assert torch.equal(kernel.wide(inputs[first:end]), together[first:end])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["c", "torch"])
def test_a_row_that_is_not_finite_stays_so_and_alone(name: str, value: float) -> None:
    kernel = make_int8_kernel(name, make_linear(torch.float32, inputs=INPUTS))
    inputs = random(5, INPUTS)
    clean = kernel.wide(inputs)
    inputs[2, 139] = value
    spoilt = kernel.wide(inputs)
    assert not spoilt[2].isfinite().any()
    assert torch.equal(spoilt[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("name", ["c", "torch"])
def test_an_outlier_coarsens_its_own_group_alone(name: str) -> None:
    weight, rows = random(40, 2 * INPUT_GROUP, seed=1), random(9, 2 * INPUT_GROUP)
    weight[:, :INPUT_GROUP] = weight[:, -1] = 0
    kernel = make_int8_kernel(name, Linear(weight))
    clean = kernel.wide(rows)
    rows[:, 0] = 1000
    assert torch.equal(kernel.wide(rows), clean)
    rows[:, -1] = 1000
    assert not torch.allclose(kernel.wide(rows), clean, atol=1)


def test_memory_is_a_quarter_and_is_let_go() -> None:
    linears = [Linear(random(256, 512)), Linear(random(128, 256))]
    before = sum(each.nbytes for each in linears)
    assert use_int8("c", linears) == "c"
    assert sum(each.nbytes for each in linears) < 0.28 * before
    assert all(each.weight is None for each in linears)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_say_the_same_with_both_back_ends(tmp_path: Path, family: str) -> None:
    folder = save_random_model(family_config(family), tmp_path, weight_scale=0.3)
    prompts = [[5], list(range(40)), list(range(100, 170))]
    tokens = []
    for name in ("c", "torch"):
        config = EngineConfig(
            model=str(folder), quantization="int8", linear_backend=name, kv_cache_memory_bytes=2**22, threads=1
        )
        llm = LLM(config)
        assert llm.core.info.quantization == "int8"
        tokens.append([generation.token_ids for generation in llm.generate(prompts, GREEDY)])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quantization": "int5"}, "--quantization int5 is unknown; use none, int8 or int4"),
        ({"quantization_ignore": ("head",)}, "--quantization-ignore head names no part of a model; use qkv_proj"),
        ({"quantization_ignore": PARTS}, "leaves nothing to round; use lm_head"),
        ({"model_impl": "transformers"}, "this model keeps its own linears; use --quantization none"),
        ({"linear_backend": "mkl"}, "--linear-backend mkl is unknown; use auto, c, onednn, torch"),
    ],
    ids=str,
)
def test_refusals(tmp_path: Path, options: dict[str, object], sentence: str) -> None:
    folder = make_tiny_llama(tmp_path, heads=4, kv_heads=2)
    settings = {"quantization": "int8", "kv_cache_memory_bytes": 2**22, **options}
    with pytest.raises(StartupError, match=sentence):
        LLM(EngineConfig(model=str(folder), **settings))  # type: ignore[arg-type]
