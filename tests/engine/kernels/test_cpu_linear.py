"""The C product against torch: every epilogue, every tile height, the same bits for any batch; and the probe."""

import logging

import pytest
import torch
from torch.nn.functional import linear

from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.cpu import probe
from pagefleet.engine.kernels.cpu.library import load_library
from pagefleet.engine.kernels.cpu.linear import CpuLinear, interleave, pack
from pagefleet.engine.kernels.cpu.probe import Probe, choose, make_kernel, use_linear_backend
from pagefleet.engine.layers.linear import Linear, gate_and_multiply

INPUTS, OUTPUTS = 70, 148
"""Not a whole number of panels, and gate and up even less."""

ROWS = [*range(1, 15), 700]
"""Every height of a tile, and more rows than fit one block."""


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_linear(dtype: torch.dtype, *, inputs: int = INPUTS, has_bias: bool = False, is_gated: bool = False) -> Linear:
    weight = random(OUTPUTS, inputs, dtype=dtype, seed=1) / inputs**0.5
    return Linear(weight, random(OUTPUTS, dtype=dtype, seed=2) if has_bias else None, is_gated=is_gated)


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("c", torch.float32, 1e-5), ("c", torch.bfloat16, 0.05), ("onednn", torch.float32, 1e-5)],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_epilogue(name: str, dtype: torch.dtype, tolerance: float, has_bias: bool) -> None:
    plain = make_linear(dtype, has_bias=has_bias)
    gated = make_linear(dtype, has_bias=has_bias, is_gated=True)
    kernel, gated_kernel = make_kernel(name, plain), make_kernel(name, gated)
    for rows in ROWS:
        inputs, residual = random(rows, INPUTS, dtype=dtype), random(rows, OUTPUTS, dtype=dtype, seed=3)
        for actual, expected in (
            (kernel(inputs), plain(inputs)),
            (kernel.wide(inputs), plain.wide(inputs)),
            (kernel.add_to(residual.clone(), inputs), plain.add_to(residual, inputs)),
            (gated_kernel.swiglu(inputs), gated.swiglu(inputs)),
        ):
            assert actual.dtype == expected.dtype
            assert torch.allclose(actual.float(), expected.float(), atol=tolerance, rtol=tolerance), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_gives_the_same_bits(dtype: torch.dtype) -> None:
    kernel = make_kernel("c", make_linear(dtype))
    inputs = random(700, INPUTS, dtype=dtype)
    together = kernel.wide(inputs)
    for first, end in ((0, 1), (5, 7), (10, 13), (3, 67), (400, 700)):
        assert torch.equal(kernel.wide(inputs[first:end]), together[first:end])


def test_rows_of_a_wider_tensor() -> None:
    plain = make_linear(torch.float32)
    wide = random(5, 2 * INPUTS)
    for rows in (wide[:, :INPUTS], wide[:, ::2]):
        assert torch.allclose(make_kernel("c", plain)(rows), plain(rows), atol=1e-5)


def test_float32_logits_are_not_rounded_to_bfloat16() -> None:
    plain = make_linear(torch.bfloat16)
    assert plain.weight is not None
    inputs = random(3, INPUTS, dtype=torch.bfloat16)
    exact = linear(inputs.float(), plain.weight.float())
    assert torch.allclose(make_kernel("c", plain).wide(inputs), exact, atol=1e-5)


def test_packing_is_a_permutation() -> None:
    weight = torch.arange(6 * 4, dtype=torch.float32).view(6, 4)
    packed = pack(weight, 4)
    assert packed.shape == (2, 4, 4, 1)
    assert torch.equal(packed[0, :, :, 0].T, weight[:4])
    assert torch.equal(packed[1, :, :2, 0].T, weight[4:])
    assert not packed[1, :, 2:].any()
    pairs = pack(weight.bfloat16(), 4)
    assert pairs.shape == (2, 2, 4, 2)
    assert pairs[1, 1, 0].tolist() == weight[4, 2:].tolist()


def test_gate_and_up_share_panels() -> None:
    rows = torch.tensor([0, 1, 2, 10, 11, 12])[:, None]
    assert interleave(rows, 4).flatten().tolist() == [0, 1, 10, 11, 2, 0, 12, 0]


def test_gate_and_multiply() -> None:
    gate, up = random(4, 9), random(4, 9, seed=1)
    assert torch.allclose(gate_and_multiply(torch.cat((gate, up), dim=1)), gate * torch.sigmoid(gate) * up)


def test_all_linears_go_to_one_back_end_and_let_go_of_their_weights() -> None:
    linears = [make_linear(torch.float32), make_linear(torch.float32, has_bias=True)]
    inputs = random(3, INPUTS)
    expected = [each(inputs) for each in linears]
    assert use_linear_backend("c", linears) == "c"
    assert all(each.weight is None and each.bias is None for each in linears)
    assert all(each.nbytes >= OUTPUTS * INPUTS * 4 for each in linears)
    assert all(torch.allclose(each(inputs), good, atol=1e-5) for each, good in zip(linears, expected, strict=True))


def test_torch_keeps_the_weights() -> None:
    plain = make_linear(torch.float32)
    assert use_linear_backend("torch", [plain]) == "torch"
    assert plain.weight is not None


def test_the_probe_measures_what_is_right_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    linears = [make_linear(torch.float32)]
    assert use_linear_backend("auto", linears) in probe.LINEAR_BACKENDS
    assert {"c", "torch"} <= {record.args[1] for record in caplog.records if isinstance(record.args, tuple)}


def test_a_wrong_back_end_is_not_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_linear(torch.float32)
    assert plain.weight is not None
    monkeypatch.setattr(CpuLinear, "__call__", lambda _, rows: torch.zeros(len(rows), OUTPUTS))
    assert "c" not in {each.name for each in probe.probe(plain.weight, with_c=True)}


def test_the_choice() -> None:
    c, other = Probe("c", (1.0, 2.0, 4.0)), Probe("torch", (2.0, 2.0, 2.0))
    assert choose([c, other]) == "c"  # 2, 1 and 0.5 times as long
    assert choose([Probe("c", (1.0, 2.0, 4.0)), Probe("torch", (0.95, 1.9, 3.8))]) == "c"  # no clear gain
    assert (
        choose([Probe("c", (1.0, 2.0, 4.0)), Probe("onednn", (0.5, 1.5, 4.0)), Probe("torch", (1, 2, 4))]) == "onednn"
    )
    assert choose([Probe("torch", (1.0, 1.0, 1.0)), Probe("onednn", (0.99, 0.99, 0.99))]) == "torch"


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Linear(torch.ones(4, 3, dtype=torch.bfloat16))
    with pytest.raises(StartupError, match=r"--linear-backend c: .*3 inputs are odd; use --linear-backend auto"):
        use_linear_backend("c", [odd])
    with pytest.raises(StartupError, match="mkl is unknown; use auto, c, onednn, torch"):
        use_linear_backend("mkl", [odd])
    monkeypatch.setattr(probe, "load_library", lambda: None)
    with pytest.raises(StartupError, match="cannot be loaded"):
        use_linear_backend("c", [make_linear(torch.float32)])
    assert load_library() is not None
