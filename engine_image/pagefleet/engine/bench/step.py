"""`pagefleet bench step`: what a decode step takes, and where that goes, by the number of running sequences.

JSON: `batches` holds for each number of sequences the best and the median step in wall and own CPU seconds, the same of
its parts (`scheduling_seconds`, `python_seconds`, `model_seconds`, of the stepping thread's CPU time), the share of
scheduling in the medians, tokens per second of the median step, and how many cores others kept busy. `stream_ratio` is
the best step of 1 sequence over the time in which this machine streams the weights, with 1 thread also by CPU time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import torch
from tqdm import tqdm

from pagefleet.engine.bench.machine_rates import cpu_name, measure_rates
from pagefleet.engine.bench.measured_run import Meter
from pagefleet.engine.bench.our_engine import OurEngine, model_sizes
from pagefleet.engine.bench.roofline import MachineRates
from pagefleet.engine.bench.setup import model_folder
from pagefleet.engine.bench.step_parts import PartTimers, StepParts
from pagefleet.engine.bench.tables import check_writable, text_table, threads_text, write_json
from pagefleet.engine.bench.workload import SEED
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import StartupError
from pagefleet.engine.messages import AddRequest, StepOutputs
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.startup import block_size_of

PARTS = ("wall", "cpu", "scheduling", "python", "model")

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Say what to measure."""

    engine: EngineConfig
    preset: str = "S"
    batches: Sequence[int] = (1, 8, 32, 64, 256)
    """Running sequences."""
    context_tokens: int = 200
    """Tokens that each sequence has in the middle of the measured steps."""
    steps: int = 32
    """Steps measured for each number of sequences."""
    json_path: Path | None = None
    measure: Callable[[torch.dtype], MachineRates] = measure_rates


@dataclass(frozen=True, kw_only=True)
class BatchSteps:
    """Hold the measured steps of one number of sequences."""

    sequences: int
    steps: Sequence[StepParts]
    other_busy_cores: float

    def median_s(self, part: str) -> float:
        """Return the median of a part of the steps."""
        return median(self._seconds(part))

    def best_s(self, part: str) -> float:
        """Return the least of a part of the steps."""
        return min(self._seconds(part))

    @property
    def scheduling_share(self) -> float:
        """Return what scheduling takes of the stepping thread's CPU time."""
        return self.median_s("scheduling_s") / sum(
            self.median_s(part) for part in ("scheduling_s", "model_s", "python_s")
        )

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens per second of the median step."""
        return self.sequences / self.median_s("wall_s")

    def summary(self) -> dict[str, object]:
        """Return what JSON holds."""
        return {
            "sequences": self.sequences,
            "steps": len(self.steps),
            **{f"{part}_seconds": self._best_and_median(f"{part}_s") for part in PARTS},
            "scheduling_share": round(self.scheduling_share, 5),
            "output_tokens_per_second": round(self.tokens_per_s, 2),
            "other_busy_cores": round(self.other_busy_cores, 2),
        }

    def _best_and_median(self, part: str) -> dict[str, float]:
        return {"best": round(self.best_s(part), 6), "median": round(self.median_s(part), 6)}

    def _seconds(self, part: str) -> list[float]:
        return [getattr(step, part) for step in self.steps]


def run_step(options: StepOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report; raises StartupError with the sentence for the user."""
    check_writable("--json", options.json_path)
    if options.context_tokens <= options.steps // 2:
        raise StartupError(
            f"--context {options.context_tokens} is too short to be the middle of {options.steps} steps: for example "
            f"--context {options.steps}"
        )
    folder = model_folder(options.engine.model, options.preset)
    batches = sorted(set(options.batches))
    engine = OurEngine(_fitted(options, folder, batches[-1]))
    core = engine.core
    prompts = _prompts(core, options, batches[-1])
    rates = [options.measure(engine.dtype)]
    measured = []
    with tqdm(total=len(batches), unit="batch", disable=None) as bar:
        for batch in batches:
            measured.append(_measure(core, prompts[:batch], options))
            rates.append(options.measure(engine.dtype))
            bar.update()
    stream_bytes_per_s = reduce(MachineRates.best_of, rates).stream_bytes_per_s
    weight_bytes = model_sizes(folder, core).weight_bytes
    report: dict[str, object] = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "model": options.engine.model or f"preset {options.preset}",
        "dtype": core.info.dtype,
        "attention_backend": core.info.attention_backend,
        "linear_backend": core.info.linear_backend,
        "block_size": core.info.block_size,
        "context_tokens": options.context_tokens,
        "weight_bytes": weight_bytes,
        "stream_gigabytes_per_second": round(stream_bytes_per_s / 1e9, 2),
        "batches": [each.summary() for each in measured],
    }
    if batches[0] == 1:
        stream_s = weight_bytes / stream_bytes_per_s
        ratios = {"wall": round(measured[0].best_s("wall_s") / stream_s, 3)}
        if torch.get_num_threads() == 1:  # the rate is that of one thread, so its own time compares too
            ratios["cpu"] = round(measured[0].best_s("cpu_s") / stream_s, 3)
        report["stream_ratio"] = ratios
    _print(report, measured, say)
    write_json(report, options.json_path)
    return report


def _fitted(options: StepOptions, folder: Path, most_sequences: int) -> EngineConfig:
    """Return the settings with a cache that holds all sequences at their longest."""
    longest = options.context_tokens + options.steps + 2 * block_size_of(options.engine)
    return msgspec.structs.replace(
        options.engine,
        model=str(folder),
        max_model_len=longest,
        max_num_seqs=most_sequences,
        max_num_queued_reqs=max(options.engine.max_num_queued_reqs, most_sequences),
    )


def _prompts(core: EngineCore, options: StepOptions, count: int) -> list[list[int]]:
    """Return prompts of whole blocks and one token more: what follows a cached prompt is a decode from the start."""
    block_size = core.info.block_size
    tokens = (options.context_tokens - options.steps // 2 - 1) // block_size * block_size + 1
    numbers = np.random.default_rng(SEED).integers(0, core.info.vocabulary_size, (count, tokens))
    prompts: list[list[int]] = numbers.tolist()
    return prompts


def _measure(core: EngineCore, prompts: Sequence[list[int]], options: StepOptions) -> BatchSteps:
    """Bring the prompts into the prefix cache, decode up to the context, then measure."""
    _add(core, prompts, output_tokens=1)
    for _ in core.steps():
        pass
    unmeasured = options.context_tokens - options.steps // 2 - len(prompts[0])
    _add(core, prompts, output_tokens=unmeasured + options.steps + 2)
    for _ in range(1 + unmeasured):
        _check_all_advance(core, core.step(), prompts)
    steps = []
    with PartTimers(core) as timers, Meter() as meter:
        for _ in range(options.steps):
            outputs, parts = timers.step()
            _check_all_advance(core, outputs, prompts)
            steps.append(parts)
    core.abort([str(index) for index in range(len(prompts))])
    return BatchSteps(sequences=len(prompts), steps=steps, other_busy_cores=meter.other_busy_cores)


def _check_all_advance(core: EngineCore, step: StepOutputs, prompts: Sequence[list[int]]) -> None:
    """Raise StartupError when a step had no place for all sequences: it would be another one than was asked for."""
    if len(step.outputs) < len(prompts):
        raise StartupError(
            f"--batches {len(prompts)} is too large: the KV cache has {core.info.blocks_total} blocks of "
            f"{core.info.block_size} tokens; for example --batches {max(1, len(prompts) // 2)}"
        )


def _add(core: EngineCore, prompts: Sequence[list[int]], *, output_tokens: int) -> None:
    sampling = SamplingParameters(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
    core.add_all(
        [
            AddRequest(request_id=str(index), prompt_token_ids=prompt, sampling=sampling)
            for index, prompt in enumerate(prompts)
        ]
    )


def _print(report: dict[str, object], measured: Sequence[BatchSteps], say: Say) -> None:
    say(
        f"{report['cpu']}, {threads_text(report)}, {report['dtype']}, {report['model']}: decode steps at "
        f"{report['context_tokens']} tokens of context, greedy, {len(measured[0].steps)} for each number of sequences"
    )
    rows = [
        (
            each.sequences,
            *(1000 * seconds for part in ("wall_s", "cpu_s") for seconds in (each.best_s(part), each.median_s(part))),
            *(1000 * each.median_s(part) for part in ("model_s", "python_s", "scheduling_s")),
            f"{each.scheduling_share:.1%}",
            each.tokens_per_s,
            each.other_busy_cores,
        )
        for each in measured
    ]
    times = ("best ms", "median", "best CPU ms", "median", "model", "Python", "scheduling")
    say(text_table(("sequences", *times, "share", "tok/s", "others' cores"), rows))
    if "stream_ratio" in report:
        ratios, weight_bytes = report["stream_ratio"], report["weight_bytes"]
        assert isinstance(ratios, dict)  # noqa: S101 - made above
        assert isinstance(weight_bytes, int)  # noqa: S101 - made above
        by_cpu = f" ({ratios['cpu']} by CPU time)" if "cpu" in ratios else ""
        say(
            f"1 sequence: its best step takes {ratios['wall']}{by_cpu} times as long as streaming the "
            f"{weight_bytes / 1e6:.0f} MB of weights at the {report['stream_gigabytes_per_second']} GB/s measured"
        )
