"""The code of the AVX512 levels on any CPU: 16 lanes, spread over narrower registers by the compiler.

What stays untested without AVX512 are its intrinsics: broadcast, maximum, minimum, the products of pairs and of bytes.
"""

import subprocess

import pytest
import torch

from pagefleet.engine.kernels.cpu import build
from pagefleet.engine.kernels.cpu.attention import CpuAttention
from pagefleet.engine.kernels.cpu.library import KernelLibrary
from pagefleet.engine.kernels.cpu.packed_attention import PackedCpuAttention
from pagefleet.engine.kernels.cpu.pointwise import CpuRmsNorm
from pagefleet.engine.kernels.gather import GatherAttention
from pagefleet.engine.kernels.interface import LayerAttention
from pagefleet.engine.layers.norm import rms_norm
from tests.engine.kernels import (
    test_cpu_attention,
    test_cpu_int4,
    test_cpu_int8,
    test_cpu_linear,
    test_cpu_packed,
    test_cpu_pointwise,
    test_cpu_sampling,
    test_packed_attention,
)
from tests.engine.kernels.test_cpu_attention import fresh, make_rows, make_shape, run_spans, spans_of
from tests.support.compiled import compile_key, file_of

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def wide() -> KernelLibrary:
    compiler = build.find_compiler()
    assert compiler is not None, "the tests need gcc"
    flags = [flag for flag in build.FLAGS if flag != "-O3"]
    sources = map(str, sorted(build.SOURCES.glob("*.c")))
    command = [compiler, *flags, "-O1", *build.LEVELS["avx2"], "-DEMULATE_AVX512", "-Wno-psabi", *sources]
    path = file_of(
        f"wide-{compile_key(command)}.so", lambda path: subprocess.run([*command, "-o", str(path)], check=True)
    )
    return KernelLibrary(path, "avx512-bf16")


@pytest.fixture(autouse=True)
def wide_everywhere(wide: KernelLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cpu.attention", "cpu.int8", "cpu.probe", "cpu.pointwise", "cpu.sampling", "int4"):
        monkeypatch.setattr(f"pagefleet.engine.kernels.{module}.load_library", lambda: wide)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [LayerAttention(), LayerAttention(window=50, soft_cap=2.0)])
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(6, 2, 64), (3, 1, 16), (8, 8, 80)])
def test_attention(dtype: torch.dtype, layer: LayerAttention, query_heads: int, kv_heads: int, head_dim: int) -> None:
    shape = make_shape(
        query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, cache_dtype=dtype, layer_attention=(layer,)
    )
    rows = make_rows(shape)[:300]
    whole = run_spans(fresh(CpuAttention, shape), rows, [(0, 300)])
    expected = run_spans(fresh(GatherAttention, shape), rows, [(0, 300)])
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    assert torch.allclose(whole.float(), expected.float(), atol=tolerance)
    chunked = [span for span in spans_of(37) if span[1] <= 300]
    assert torch.equal(run_spans(fresh(CpuAttention, shape), rows, chunked), whole[: chunked[-1][1]])


@pytest.mark.parametrize(("name", "block_size", "head_dim"), [("int8", 16, 64), ("int4", 32, 96), ("k4v3", 64, 80)])
def test_packed_attention_over(name: str, block_size: int, head_dim: int) -> None:
    test_packed_attention.test_equals_the_definition(PackedCpuAttention, name, block_size, (6, 2, head_dim))
    for dtype in DTYPES:
        test_cpu_packed.test_stores_what_the_format_says(dtype, name, block_size, head_dim)
        test_cpu_packed.test_values_are_rotated(dtype, head_dim)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_attention_gives_the_same_bits(dtype: torch.dtype) -> None:
    layer = LayerAttention(window=100, soft_cap=5.0)
    test_cpu_packed.test_chunks_and_batches_give_the_same_bits(dtype, layer, (6, 2, 64), "k4v3")


def test_packed_attention_in_bfloat16() -> None:
    test_packed_attention.test_bfloat16(PackedCpuAttention)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype: torch.dtype) -> None:
    for has_bias in (False, True):
        test_cpu_linear.test_every_epilogue("c", dtype, 1e-5 if dtype == torch.float32 else 0.05, has_bias)
    test_cpu_linear.test_a_batch_gives_the_same_bits(dtype)
    test_cpu_int8.test_every_epilogue(dtype, True)
    test_cpu_int8.test_any_depth(71)
    test_cpu_int8.test_a_row_that_is_not_finite_stays_so_and_alone("c", torch.nan)
    test_cpu_int8.test_a_batch_gives_the_same_bits(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_4_bit_weights(dtype: torch.dtype) -> None:
    for has_bias, is_ordered in ((False, False), (True, True)):
        test_cpu_int4.test_every_epilogue(dtype, has_bias, is_ordered)
    test_cpu_int4.test_any_depth_and_width(384, 128, 77)
    test_cpu_int4.test_a_row_that_is_not_finite_stays_so_and_alone(torch.nan)
    test_cpu_int4.test_a_batch_gives_the_same_bits(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout(dtype: torch.dtype) -> None:
    test_cpu_attention.test_layout(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm(wide: KernelLibrary, dtype: torch.dtype) -> None:
    hidden = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.linspace(0.5, 1.5, 100).to(dtype)
    actual, expected = CpuRmsNorm(wide, dtype)(hidden, weight, 1e-6), rms_norm(hidden, weight, 1e-6)
    assert torch.allclose(actual.float(), expected.float(), atol=1e-5 if dtype == torch.float32 else 0.02)


def test_sampling() -> None:
    test_cpu_pointwise.test_argmax(1003)
    test_cpu_sampling.test_the_same_tokens_as_torch(1003, {"top_k": 100, "top_p": 0.95})
