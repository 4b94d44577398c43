"""Compile the kernels for GPUs that need not be there: `python -m pagefleet.engine.kernels.triton.compile`.

Prints what each kernel takes of a multiprocessor: a kernel that needs more shared memory than there is cannot start,
and one that spills registers is slow.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from pagefleet.engine.kernels.triton.launch import IS_INTERPRETED
from pagefleet.engine.kernels.triton.variants import (
    LINEAR,
    TYPICAL,
    Configuration,
    LinearConfiguration,
    Variant,
    variants,
)

SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448}
"""What one program may have, by compute capability (CUDA C++ Programming Guide, table of compute capabilities)."""

DEFAULT_CAPABILITIES = (80, 90, 100)

MOST_SPILL_BYTES = 64
"""A few registers spilled outside of the loop cost nothing."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one compiled kernel takes."""

    kernel: str
    configuration: Configuration | LinearConfiguration
    capability: int
    registers: int
    """Of each thread; 255 at most."""
    shared_bytes: int
    spill_bytes: int
    """Stored and loaded again by each thread, in sum over the program's text."""

    def refusal(self, most_spill_bytes: int) -> str | None:
        """Return why the kernel should not ship, or None."""
        name = f"{self.kernel} of {self.configuration} for sm_{self.capability}"
        if self.shared_bytes > SHARED_BYTES[self.capability]:
            return f"{name} needs {self.shared_bytes} bytes of shared memory; {SHARED_BYTES[self.capability]} are there"
        if self.spill_bytes > most_spill_bytes:
            return f"{name} spills {self.spill_bytes} bytes; {most_spill_bytes} are accepted"
        return None


def compile_variant(variant: Variant, configuration: Configuration | LinearConfiguration, capability: int) -> Usage:
    """Compile one kernel to machine code and return what it takes."""
    names = variant.kernel.arg_names
    types = {**variant.pointers, **variant.numbers}
    aligned = {*variant.pointers, *variant.strides}
    source = ASTSource(
        fn=variant.kernel,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    options["enable_fp_fusion"] = variant.fuses_multiply_adds
    compiled = triton.compile(source, target=target, options=options)
    registers, spill_bytes = _assemble(compiled.asm["ptx"], capability)
    return Usage(
        kernel=variant.name,
        configuration=configuration,
        capability=capability,
        registers=registers,
        shared_bytes=compiled.metadata.shared,
        spill_bytes=spill_bytes,
    )


def _assemble(ptx: str, capability: int) -> tuple[int, int]:
    """Return registers of a thread, and bytes it spills, as the assembler counts them."""
    architecture = re.findall(r"\.target (sm_\w+)", ptx)[0]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", "--regAllocOptLevel=2", f"--gpu-name={architecture}"]
        report = subprocess.run(
            [*command, str(source), "-o", str(Path(folder, "kernel.cubin"))], capture_output=True, text=True, check=True
        ).stderr
    registers = re.findall(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    return int(registers[0]), sum(map(int, spills))


def compile_all(
    configurations: Iterable[Configuration | LinearConfiguration], capabilities: Iterable[int], jobs: int = 1
) -> list[Usage]:
    """Compile every kernel of every configuration for every capability."""
    work = [
        (variant, configuration, capability)
        for configuration in configurations
        for variant in variants(configuration)
        for capability in capabilities
        if configuration.runs_on(capability)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda one: compile_variant(*one), work))


def table(usages: list[Usage]) -> str:
    """Return the Markdown table: a row for each configuration, a column for each kernel.

    A cell is registers, KiB of shared memory and, where there are any, bytes spilled, each for one capability after
    another.
    """
    kernels = list(dict.fromkeys(usage.kernel for usage in usages))
    rows: dict[str, dict[str, list[Usage]]] = {}
    for usage in usages:
        rows.setdefault(str(usage.configuration), {}).setdefault(usage.kernel, []).append(usage)
    lines = [["configuration", *kernels], ["---"] * (len(kernels) + 1)]
    lines += [[name, *(_cell(cells.get(kernel, [])) for kernel in kernels)] for name, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(usages: list[Usage]) -> str:
    columns = [
        [str(usage.registers) for usage in usages],
        [str(-(-usage.shared_bytes // 1024)) for usage in usages],
        [str(usage.spill_bytes) for usage in usages],
    ]
    shown = columns if any(usage.spill_bytes for usage in usages) else columns[:2]
    return "; ".join("/".join(column) for column in shown)


def main() -> int:
    """Compile the typical configurations, print the table, and fail if a kernel should not ship."""
    parser = argparse.ArgumentParser(prog="python -m pagefleet.engine.kernels.triton.compile", description=__doc__)
    parser.add_argument(
        "--capability",
        type=int,
        action="append",
        choices=sorted(SHARED_BYTES),
        help="repeatable; default: 80, 90 and 100",
    )
    parser.add_argument("--configuration", action="append", metavar="NAME", help="repeatable; default: all")
    parser.add_argument("--most-spill-bytes", type=int, default=MOST_SPILL_BYTES)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if IS_INTERPRETED:
        parser.error("with TRITON_INTERPRET=1 nothing is compiled: unset it")
    capabilities = options.capability or list(DEFAULT_CAPABILITIES)
    every: list[Configuration | LinearConfiguration] = [*TYPICAL, *LINEAR]
    by_name = {str(one): one for one in every}
    names = options.configuration or list(by_name)
    if unknown := [name for name in names if name not in by_name]:
        parser.error(f"--configuration {unknown[0]!r} is unknown; use one of {', '.join(map(repr, by_name))}")
    chosen = [by_name[name] for name in names]
    usages = compile_all(chosen, capabilities, options.jobs)
    targets = "/".join(f"sm_{capability}" for capability in capabilities)
    sys.stdout.write(f"{targets}: registers of a thread; KiB of shared memory; bytes spilled\n\n{table(usages)}\n")
    refusals = [refusal for usage in usages if (refusal := usage.refusal(options.most_spill_bytes))]
    sys.stderr.writelines(f"{refusal}\n" for refusal in refusals)
    return 1 if refusals else 0


if __name__ == "__main__":
    sys.exit(main())
