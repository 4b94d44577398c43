"""The engine offline: a list of prompts in, their tokens or texts out, in this process."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pagefleet.engine.config import EngineConfig
from pagefleet.engine.core import EngineCore
from pagefleet.engine.detokenizer import Detokenizer
from pagefleet.engine.gguf_cache import cached_conversion
from pagefleet.engine.kernels.interface import PagedAttention
from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.messages import AddRequest, RequestOutput
from pagefleet.engine.model_source import resolve_model
from pagefleet.engine.sampling_params import SamplingParameters, check_sampling_parameters
from pagefleet.engine.stages import StageClock
from pagefleet.engine.startup import start_engine
from pagefleet.engine.tokenizer import Tokenizer, load_tokenizer


@dataclass
class Generation:
    """Hold what one prompt became."""

    token_ids: list[int] = field(default_factory=list)
    """The output without the prompt."""
    finish_reason: str = ""
    preemptions: int = 0
    text: str | None = None
    """The output as text, without special tokens; None for a prompt of token ids."""
    logprobs: list[TokenLogprobs] | None = None
    """Scores of the output tokens, where the sampling parameters ask for them."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Scores of the prompt's tokens from the second on, where the sampling parameters ask for them."""

    def take(self, output: RequestOutput) -> None:
        """Add what one step produced."""
        self.token_ids += output.new_token_ids
        if output.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *output.logprobs]
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.finish_reason is not None:
            self.finish_reason, self.preemptions = output.finish_reason, output.preemptions


class LLM:
    """Generate for many prompts at once: `LLM("path/or/hub-id", max_model_len=2048).generate(["Once"])`."""

    def __init__(
        self, model: str | EngineConfig, *, attention_class: type[PagedAttention] | None = None, **settings: Any
    ) -> None:
        config = model if isinstance(model, EngineConfig) else EngineConfig(model=model, **settings)
        self._config = config
        self.core: EngineCore = start_engine(config, StageClock(lambda _: None), attention_class=attention_class)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Load the model's tokenizer, when the first text comes."""
        source = resolve_model(self._config.model, lambda _: None, revision=self._config.revision)
        source = cached_conversion(source) or source
        return load_tokenizer(source.folder, source.gguf_file)

    def generate(
        self,
        prompts: SequenceOf[str] | SequenceOf[list[int]],
        sampling: SamplingParameters | SequenceOf[SamplingParameters] | None = None,
    ) -> list[Generation]:
        """Return `n` generations per prompt (or `beam_width`, the best first), text or token ids, in order.

        Without parameters 16 tokens are sampled.

        Raises RequestRefused when a prompt can never fit or a parameter has no meaning.
        """
        if sampling is None:
            sampling = SamplingParameters(max_tokens=16)
        parameters = [sampling] * len(prompts) if isinstance(sampling, SamplingParameters) else list(sampling)
        token_prompts = [
            self.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]
        self._add_all(token_prompts, parameters)
        choices = [(index, choice) for index, each in enumerate(parameters) for choice in range(each.choices)]
        generations = {choice: Generation() for choice in choices}
        self._run(generations)
        for index, choice in choices:
            if isinstance(prompts[index], str):
                generation = generations[index, choice]
                generation.text = self._text(token_prompts[index], generation, parameters[index])
        return list(generations.values())

    def _run(self, generations: dict[tuple[int, int], Generation]) -> None:
        """Step until nothing is left; outputs go to (prompt, choice)."""
        for step in self.core.steps():
            for output in step.outputs:
                generations[int(output.request_id), output.index].take(output)

    def _add_all(self, prompts: list[list[int]], parameters: list[SamplingParameters]) -> None:
        info = self.core.info
        for each in parameters:
            check_sampling_parameters(
                each, vocabulary_size=info.vocabulary_size, eos_token_ids=frozenset(info.eos_token_ids)
            )
        self.core.add_all(
            [
                AddRequest(request_id=str(index), prompt_token_ids=prompt, sampling=each)
                for index, (prompt, each) in enumerate(zip(prompts, parameters, strict=True))
            ]
        )

    def _text(self, prompt: list[int], generation: Generation, sampling: SamplingParameters) -> str:
        detokenizer = Detokenizer(self.tokenizer, prompt, skip_special_tokens=True)
        tokens = generation.token_ids
        if generation.finish_reason == "stop" and tokens[-1] in sampling.stop_token_ids:
            tokens = tokens[:-1]  # a stop token is no text; an end token is special anyway
        return "".join([*(detokenizer.append(token) for token in tokens), detokenizer.flush()])
