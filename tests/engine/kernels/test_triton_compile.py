"""Ahead-of-time compilation for GPUs that are not here: nothing needs more than a device has, nothing spills.

The command compiles all configurations; here are the commonest for all devices, and the widest for one. Kernels
that are as they were are not compiled again.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pagefleet.engine.kernels.triton import compile as compile_module
from pagefleet.engine.kernels.triton.compile import SHARED_BYTES, Usage, table
from pagefleet.engine.kernels.triton.variants import TYPICAL, Configuration
from tests.images.cache import content_hash, tree_hash
from tests.support.compiled import Said, answer_of

COMMON = "head 128, bfloat16, 4 to 1"


def run(*arguments: str) -> Said:
    """Run the command, or tell what it said of the same kernels before."""
    kernels = tree_hash([Path(compile_module.__file__).parent])
    key = content_hash(kernels, version("triton"), version("torch"), *arguments)
    return answer_of("triton", key, lambda: compile_kernels(*arguments))


def compile_kernels(*arguments: str) -> Said:
    """Run the command in a process of its own: this one may interpret kernels, which decides at Triton's import."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pagefleet.engine.kernels.triton.compile", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr  # nor is it kept
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [["--configuration", COMMON], ["--configuration", "head 256, float32, 4 to 1", "--capability", "80"]],
)
def test_kernels_fit(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert "| configuration | store | prefill | decode | split decode | merge |" in result.stdout
    assert f"| {arguments[1]} | " in result.stdout


def test_a_refusal_is_a_sentence() -> None:
    result = run("--configuration", COMMON, "--capability", "80", "--most-spill-bytes", "-1")
    assert result.returncode == 1
    assert f"store of {COMMON} for sm_80 spills 0 bytes; -1 are accepted" in result.stderr
    result = run("--configuration", "head 7")
    assert "--configuration 'head 7' is unknown; use one of 'head 64, bfloat16, 4 to 1'" in result.stderr


def usage(**options: int) -> Usage:
    numbers = {"capability": 80, "registers": 100, "shared_bytes": 1024, "spill_bytes": 0, **options}
    return Usage(kernel="decode", configuration=Configuration(head_dim=128), **numbers)


def test_limits() -> None:
    assert usage(shared_bytes=SHARED_BYTES[80], spill_bytes=8).refusal(8) is None
    assert "needs 166913 bytes of shared memory; 166912 are there" in str(usage(shared_bytes=166_913).refusal(8))
    assert "spills 9 bytes" in str(usage(spill_bytes=9).refusal(8))


def test_table() -> None:
    lines = table([usage(), usage(capability=90, registers=90, shared_bytes=1025)]).splitlines()
    assert lines[0] == "| configuration | decode |"
    assert lines[2] == f"| {COMMON} | 100/90; 1/2 |"
    assert "| 100/100; 1/1; 0/12 |" in table([usage(), usage(capability=90, spill_bytes=12)])
    assert len({str(one) for one in TYPICAL}) == len(TYPICAL), "two configurations would share a row"
