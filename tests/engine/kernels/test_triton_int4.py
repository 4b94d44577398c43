"""Linears over 4-bit weights in Triton against their twin in torch, and the GPU's packing against its definition."""

from pathlib import Path

import pytest
import torch

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.int4 import round_to_int4, use_int4_backend
from pagefleet.engine.kernels.triton.int4_linear import TritonInt4Linear, multiply
from pagefleet.engine.kernels.triton.int4_weight import GpuInt4Weight, dequantize, multiply_in_torch, pack_for_gpu
from pagefleet.engine.layers import int4
from pagefleet.engine.layers.int4 import Int4Weight, pack_numbers
from pagefleet.engine.layers.int4_linear import TorchInt4Linear
from pagefleet.engine.layers.linear import Linear
from pagefleet.engine.llm import LLM
from pagefleet.engine.sampling_params import SamplingParameters
from tests.engine.kernels.triton_steps import DEVICE
from tests.support.tiny_models import make_tiny_llama


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def make_weight(outputs: int, inputs: int, group: int = 128, *, is_ordered: bool = False) -> Int4Weight:
    """Return a weight with 16 among its zero points."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (outputs, inputs), generator=generator)
    scales = torch.rand(outputs, inputs // group, generator=generator) / 16 + 0.01
    zeros = torch.randint(0, 17, (outputs, inputs // group), generator=generator).to(torch.uint8)
    order = torch.randperm(inputs, generator=generator) if is_ordered else None
    return Int4Weight(pack_numbers(numbers), scales, zeros, order).to(DEVICE)


def make_packed(outputs: int, groups: int) -> GpuInt4Weight:
    return pack_for_gpu(make_weight(outputs, groups * 128))


@pytest.mark.parametrize(("group", "kept"), [(128, 128), (64, 64), (32, 32), (96, 32), (384, 128)])
def test_the_packed_weight_stands_for_the_same(group: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = make_weight(5, 384, group)
    monkeypatch.setattr("pagefleet.engine.kernels.triton.int4_weight.PANEL_VALUES", 2 * 384)
    packed = pack_for_gpu(weight)
    assert torch.equal(dequantize(packed), int4.dequantize(weight))
    assert (packed.inputs, packed.outputs, packed.group) == (384, 5, kept)
    assert packed.nbytes == 5 * (384 // 2 + 384 // kept * 5)


def test_other_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="groups must be of multiples of 32 inputs; 48 is none"):
        pack_for_gpu(make_weight(5, 384, 48))


@pytest.mark.parametrize(("tokens", "outputs", "groups"), [(1, 32, 1), (16, 50, 2), (17, 70, 3), (65, 64, 1)])
def test_sizes(tokens: int, outputs: int, groups: int) -> None:
    weight, rows = make_packed(outputs, groups), random(tokens, groups * 128, seed=1)
    actual = multiply(rows, weight, torch.float32)
    torch.testing.assert_close(actual, multiply_in_torch(rows, weight), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("tokens", [3, 20])
def test_number_formats(dtype: torch.dtype, tolerance: float, tokens: int) -> None:
    """Rows that are views of something wider."""
    weight, rows = make_packed(40, 2), random(tokens, 300, dtype=dtype, seed=1)[:, 32:288]
    torch.testing.assert_close(
        multiply(rows, weight, dtype), multiply_in_torch(rows, weight), atol=0.05, rtol=tolerance
    )


def test_no_rows() -> None:
    assert multiply(torch.empty(0, 128, device=DEVICE), make_packed(8, 1), torch.float32).shape == (0, 8)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "has_bias", "is_ordered"),
    [(torch.float32, 1e-5, True, True), (torch.bfloat16, 2e-2, False, False)],
)
@pytest.mark.parametrize(("inputs", "group"), [(256, 128), (192, 64), (96, 32), (256, 256)])
def test_a_layer_is_its_twin(
    dtype: torch.dtype, tolerance: float, has_bias: bool, is_ordered: bool, inputs: int, group: int
) -> None:
    bias = random(40, dtype=dtype, seed=2) if has_bias else None
    twin = TorchInt4Linear(make_weight(40, inputs, group, is_ordered=is_ordered), bias, dtype)
    layer = Linear(None, kernel=twin)
    assert use_int4_backend("triton", [layer]) == "triton"
    assert isinstance(layer.kernel, TritonInt4Linear)
    rows, residual = random(3, inputs, dtype=dtype, seed=1), random(3, 40, dtype=dtype, seed=3)
    for actual, expected in (
        (layer(rows), twin(rows)),
        (layer.wide(rows), twin.wide(rows)),
        (layer.add_to(residual.clone(), rows), twin.add_to(residual, rows)),
        (layer.swiglu(rows), twin.swiglu(rows)),
    ):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, atol=5 * tolerance, rtol=tolerance)
    assert layer.nbytes == twin.nbytes + (40 * 5 if group == 256 else 0)


def test_a_layer_whose_groups_do_not_fit_stays_in_torch(caplog: pytest.LogCaptureFixture) -> None:
    twin = TorchInt4Linear(make_weight(8, 48, 16), None, torch.float32)
    layer = Linear(None, kernel=twin)
    assert use_int4_backend("triton", [layer]) == "triton"
    assert layer.kernel is twin
    assert "groups of 16 inputs are no multiples of 32" in caplog.text


def test_plain_weights_are_rounded_where_they_are() -> None:
    layer = Linear(random(40, 128))
    plain = layer.weight
    assert plain is not None
    assert round_to_int4([layer]) == []
    use_int4_backend("triton", [layer])
    rows = random(2, 128, seed=1)
    expected = rows @ plain.T
    assert (layer(rows) - expected).norm() / expected.norm() < 0.15


def test_without_a_gpu_it_is_for_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Linear(None, kernel=TorchInt4Linear(make_weight(8, 128).to(torch.device("cpu")), None, torch.float32))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(StartupError, match=r"the Triton 4-bit kernel computes on a GPU; .*use --linear-backend auto"):
        use_int4_backend("triton", [layer])


def test_an_engine_says_the_same_as_in_torch(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, heads=2, kv_heads=1, hidden=32, head_dim=16, weight_scale=0.3, layers=1)
    greedy = SamplingParameters(max_tokens=3, temperature=0.0, ignore_eos=True)
    tokens = []
    for name in ("triton", "torch"):
        config = EngineConfig(
            model=str(folder),
            device=DEVICE.type,
            dtype="float32",
            quantization="int4",
            linear_backend=name,
            kv_cache_memory_bytes=2**22,
            max_num_seqs=2,
            max_num_batched_tokens=16,
        )
        llm = LLM(config)
        assert (llm.core.info.quantization, llm.core.info.linear_backend) == ("int4", name)
        tokens.append([each.token_ids for each in llm.generate([[5], list(range(20))], greedy)])
    assert tokens[0] == tokens[1]
