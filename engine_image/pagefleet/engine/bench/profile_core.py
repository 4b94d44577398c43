"""The ladder of a profile in this process: steps of prompts of several lengths, and decodes of several batches."""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
import torch

from pagefleet.capacity.step_fit import StepSample
from pagefleet.engine.bench.workload import SEED
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import StartupError
from pagefleet.engine.messages import AddRequest, StepOutputs
from pagefleet.engine.sampling_params import SamplingParameters

PREFILL_TOKENS = (16, 64, 256)
PREFILL_REPEATS = 3

Typical = Callable[[Sequence[float]], float]
"""Which of a rung's times counts."""


def measure_core(
    core: EngineCore, *, batches: Sequence[int], context: int, steps: int, typical: Typical = min
) -> Iterator[StepSample]:
    """Yield one sample for each rung; raises StartupError when the cache cannot hold a rung's sequences.

    Of alike steps the best counts, since a disturbed one is only ever too long. The mean is for comparisons with steps
    that are as disturbed.
    """
    random = np.random.default_rng(SEED)
    most = min(core.info.max_num_batched_tokens, core.info.max_model_len - 2)
    _prefill(core, _prompts(random, core, 1, min(PREFILL_TOKENS)))  # the first step pays for what is made once
    for tokens in sorted({min(tokens, most) for tokens in PREFILL_TOKENS}):
        prompts = _prompts(random, core, PREFILL_REPEATS, tokens)
        times_s = [_prefill(core, [prompt]) for prompt in prompts]
        yield StepSample(prefill_tokens=tokens, kv_tokens=0, sequences=0, step_s=typical(times_s))
    block_size = core.info.block_size
    for length in sorted({max(block_size, context // 8 // block_size * block_size), context}):
        prompts = _prompts(random, core, max(batches), length // block_size * block_size + 1)
        _prefill(core, prompts)
        for batch in batches:
            yield _decode(core, prompts[:batch], steps, typical)


def _prompts(random: np.random.Generator, core: EngineCore, count: int, tokens: int) -> list[list[int]]:
    prompts: list[list[int]] = random.integers(0, core.info.vocabulary_size, (count, tokens)).tolist()
    return prompts


def _prefill(core: EngineCore, prompts: Sequence[list[int]]) -> float:
    """Compute prompts, which stay in the prefix cache, and return the seconds of the last step."""
    _add(core, prompts, output_tokens=1)
    return [step_s for _, step_s in _timed_steps(core)][-1]


def _decode(core: EngineCore, prompts: Sequence[list[int]], steps: int, typical: Typical) -> StepSample:
    """Decode behind cached prompts; the first step, which computes their last tokens, is not counted."""
    _add(core, prompts, output_tokens=steps + 2)
    times_s, kv_tokens = [], []
    for number, (outputs, step_s) in zip(range(steps + 1), _timed_steps(core), strict=False):
        if len(outputs.outputs) < len(prompts):
            raise StartupError(
                f"--batches {len(prompts)} is too large: the KV cache has {core.info.blocks_total} blocks of "
                f"{core.info.block_size} tokens; for example --batches {max(1, len(prompts) // 2)}"
            )
        if number:
            times_s.append(step_s)
            kv_tokens.append(outputs.state.tokens_active)
    core.abort([str(index) for index in range(len(prompts))])
    return StepSample(prefill_tokens=0, kv_tokens=median(kv_tokens), sequences=len(prompts), step_s=typical(times_s))


def _timed_steps(core: EngineCore) -> Iterator[tuple[StepOutputs, float]]:
    # One thread's own time leaves out what others take of its core; of several threads only the clock knows the time.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    while core.has_work():
        started_s = clock()
        outputs = core.step()
        yield outputs, clock() - started_s


def _add(core: EngineCore, prompts: Sequence[list[int]], *, output_tokens: int) -> None:
    sampling = SamplingParameters(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
    core.add_all(
        [
            AddRequest(request_id=str(index), prompt_token_ids=prompt, sampling=sampling)
            for index, prompt in enumerate(prompts)
        ]
    )
