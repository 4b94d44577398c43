"""The engine offline: a list of prompts in, their tokens out, in this process."""

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.kernels.interface import PagedAttention
from pagefleet.engine.messages import AddRequest, Refused
from pagefleet.engine.sampling_params import SamplingParameters, check_sampling_parameters
from pagefleet.engine.stages import StageClock
from pagefleet.engine.startup import start_engine


@dataclass(frozen=True)
class Generation:
    """Hold what one prompt became."""

    token_ids: list[int]
    """The output without the prompt."""
    finish_reason: str
    preemptions: int


class LLM:
    """Generate for many prompts at once."""

    def __init__(self, config: EngineConfig, *, attention_class: type[PagedAttention] | None = None) -> None:
        self.core: EngineCore = start_engine(config, StageClock(lambda _: None), attention_class=attention_class)

    def generate(
        self, prompts: SequenceOf[list[int]], sampling: SamplingParameters | SequenceOf[SamplingParameters]
    ) -> list[Generation]:
        """Return `n` generations, or `beam_width` with the best first, per prompt of token ids, in order.

        Raises RequestRefused when one can never fit or asks for what has no meaning.
        """
        parameters = [sampling] * len(prompts) if isinstance(sampling, SamplingParameters) else list(sampling)
        for each in parameters:
            check_sampling_parameters(each, vocabulary_size=self.core.info.vocabulary_size)
        for index, (prompt, each) in enumerate(zip(prompts, parameters, strict=True)):
            answer = self.core.add(AddRequest(request_id=str(index), prompt_token_ids=prompt, sampling=each))
            if isinstance(answer, Refused):
                self.core.abort([str(done) for done in range(index)])
                raise RequestRefused(answer.message, parameter="prompt", code=answer.reason)
        choices = [(str(index), choice) for index, each in enumerate(parameters) for choice in range(each.choices)]
        tokens: dict[tuple[str, int], list[int]] = {choice: [] for choice in choices}
        ends: dict[tuple[str, int], tuple[str, int]] = {}
        while self.core.has_work():
            outputs = self.core.step().outputs
            if self.core.is_forming:
                time.sleep(0.001)  # nobody adds to this batch: it runs when its time-out is over
            for output in outputs:
                choice = (output.request_id, output.index)
                tokens[choice] += output.new_token_ids
                if output.finish_reason is not None:
                    ends[choice] = (output.finish_reason, output.preemptions)
        return [Generation(tokens[choice], *ends[choice]) for choice in choices]
