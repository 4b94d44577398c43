"""Our engine as a contestant: requests straight into the core, a look at its blocks after every step."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from pagefleet.engine.bench.measured_run import Contestant, MeasuredRun, Meter, OnTokens
from pagefleet.engine.bench.output_text import OutputText
from pagefleet.engine.bench.roofline import ModelSizes, StepRows
from pagefleet.engine.bench.workload import BenchRequest
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.device import named_dtype
from pagefleet.engine.llm import LLM
from pagefleet.engine.messages import AddRequest, CoreState
from pagefleet.engine.sampling_params import SamplingParameters
from pagefleet.engine.tokenizer import Tokenizer

OnStep = Callable[[CoreState], object]


class OurEngine(Contestant):
    """Run requests through an `EngineCore` in this process; with a tokenizer their outputs become text step by step."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        name: str = "pagefleet",
        on_step: OnStep | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self.on_step = on_step
        self.core: EngineCore = LLM(config).core

    @property
    def name(self) -> str:
        """Name the contestant."""
        return self._name

    @property
    def text(self) -> str:
        """Say when tokens become text."""
        return "none" if self._tokenizer is None else "each step, stop string"

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that the engine computes in."""
        return named_dtype("--dtype", self.core.info.dtype)

    def run(self, requests: Sequence[BenchRequest], on_tokens: OnTokens) -> MeasuredRun:
        """Run all requests with an empty prefix cache; raises RequestRefused when one does not fit."""
        core = self.core
        core.reset_prefix_cache()
        outputs: list[list[int]] = [[] for _ in requests]
        steps: list[StepRows] = []
        text = None
        with Meter() as meter:
            if self._tokenizer is not None:
                text = OutputText(self._tokenizer, requests)
            core.add_all([_message(index, request) for index, request in enumerate(requests)])
            for step in core.steps():
                steps.append(StepRows(step.state.step_tokens, len(step.outputs)))
                for output in step.outputs:
                    outputs[int(output.request_id)] += output.new_token_ids
                if text is not None:
                    text.read(step.outputs)
                if self.on_step is not None:
                    self.on_step(step.state)
                on_tokens(len(step.outputs))
        return MeasuredRun(
            outputs=outputs,
            wall_s=meter.wall_s,
            own_cpu_s=meter.own_cpu_s,
            other_busy_cores=meter.other_busy_cores,
            steps=steps,
            texts=[] if text is None else text.texts(),
            text_cpu_s=None if text is None else text.cpu_s,
        )


def _message(index: int, request: BenchRequest) -> AddRequest:
    sampling = SamplingParameters(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True)
    return AddRequest(request_id=str(index), prompt_token_ids=request.prompt_token_ids, sampling=sampling)


def model_sizes(folder: Path, core: EngineCore) -> ModelSizes:
    """Return what the roofline needs to know of a folder's model, which is built once without weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    head = model.get_output_embeddings().weight
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    matrices = {id(each): each.numel() for each in model.parameters() if each.dim() == 2}
    return ModelSizes(
        body_parameters=sum(size for key, size in matrices.items() if key not in tables | {id(head)}),
        head_parameters=head.numel(),
        bytes_per_parameter=named_dtype("--dtype", core.info.dtype).itemsize,
        kv_bytes_per_token=core.info.block_bytes // core.info.block_size,
    )
