"""From the tokens of one sequence to the text that its reader sees: echo, characters, stop strings, positions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagefleet.engine.detokenizer import Detokenizer
from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.messages import RequestOutput
from pagefleet.engine.server.protocol import SamplingFields
from pagefleet.engine.stop_strings import StopStringFilter
from pagefleet.engine.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How tokens become text."""

    stop: tuple[str, ...] = ()
    include_stop_in_output: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    """Tokens before which no stop string ends the text."""
    echo_prompt: bool = False
    """Begin the text with the prompt's tokens."""
    is_prompt_only: bool = False
    """End the text where the prompt ends: the token that the core makes is not asked for."""

    @classmethod
    def of(cls, fields: SamplingFields, *, echo_prompt: bool = False, is_prompt_only: bool = False) -> "OutputOptions":
        """Read the options from a request."""
        return cls(
            stop=tuple(fields.stop or ()),
            include_stop_in_output=bool(fields.include_stop_str_in_output),
            skip_special_tokens=fields.skip_special_tokens is not False,
            min_tokens=fields.min_tokens or 0,
            echo_prompt=echo_prompt,
            is_prompt_only=is_prompt_only,
        )


@dataclass(frozen=True)
class TextToken:
    """A token and where its text begins."""

    token_id: int
    text_offset: int
    """Characters in front of it; a token that goes on with a character has the character's own offset."""
    scores: TokenLogprobs | None
    """None when the request asks for none, and for the first token of a prompt, which nothing predicts."""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What one output adds. `text` is empty while a character or a possible stop string is incomplete."""

    text: str = ""
    tokens: tuple[TextToken, ...] = ()
    """The generated tokens, each exactly once: with the one that ends the text, and whether their text shows or not."""
    echoed: tuple[TextToken, ...] = ()
    """The prompt's tokens in front of them, if they are part of the text."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or the request's own stop token that ended the text (vLLM's field)."""


def join(deltas: Sequence[Delta]) -> Delta:
    """Make one delta of all that a sequence gave."""
    return Delta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        echoed=tuple(token for delta in deltas for token in delta.echoed),
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
    )


class TextReader:
    """Read the outputs of one sequence. Pure; an echoed prompt is decoded at once, so a long one needs a thread."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], options: OutputOptions) -> None:
        self.completion_tokens = 0
        """Tokens generated, up to and including the one that ended the text."""
        self._options = options
        self._stops = StopStringFilter(options.stop, include_in_output=options.include_stop_in_output)
        self._length = 0  # characters so far, those that a stop string may still cut off included
        self._prompt_token_ids = prompt_token_ids
        self._echoed_offsets: list[int] = []
        self._echoed_text = ""
        self._detokenizer = Detokenizer(
            tokenizer,
            [] if options.echo_prompt else prompt_token_ids,
            skip_special_tokens=options.skip_special_tokens,
        )
        if options.echo_prompt:
            self._read_prompt()

    def read(self, output: RequestOutput) -> Delta:
        """Take one output and return what it adds; after a finish reason nothing more may come."""
        echoed = self._take_echo(output.prompt_logprobs)
        text, self._echoed_text = self._echoed_text, ""
        if self._options.is_prompt_only:
            reason = "abort" if output.finish_reason == "abort" else "length"
            return Delta(text=text + self._detokenizer.flush(), echoed=echoed, finish_reason=reason)
        tokens: list[TextToken] = []
        text += self._read_tokens(output, tokens)
        if output.finish_reason is not None and self._stops.matched is None:
            text += self._stops.feed(self._detokenizer.flush(), may_stop=self._may_stop)
            if self._stops.matched is None:
                text += self._stops.finish()
        ended_by_string = self._stops.matched is not None
        return Delta(
            text=text,
            tokens=tuple(tokens),
            echoed=echoed,
            finish_reason="stop" if ended_by_string else output.finish_reason,
            stop_reason=self._stops.matched if ended_by_string else output.stop_token_id,
        )

    def _read_prompt(self) -> None:
        pieces = []
        for token in self._prompt_token_ids:
            self._echoed_offsets.append(self._length)
            pieces.append(self._detokenizer.append(token))
            self._length += len(pieces[-1])
        self._echoed_text = "".join(pieces)

    def _take_echo(self, scores: list[TokenLogprobs] | None) -> tuple[TextToken, ...]:
        """Return the echoed tokens, once."""
        offsets, self._echoed_offsets = self._echoed_offsets, []
        if not offsets:
            return ()
        of_tokens: Iterable[TokenLogprobs | None] = [None] * len(offsets) if scores is None else [None, *scores]
        return tuple(TextToken(*each) for each in zip(self._prompt_token_ids, offsets, of_tokens, strict=True))

    def _read_tokens(self, output: RequestOutput, tokens: list[TextToken]) -> str:
        """Decode tokens up to the one that completes a stop string; a stop token itself is no text."""
        text = ""
        token_ids = output.new_token_ids
        is_last_silent = output.finish_reason == "stop" and not self._options.include_stop_in_output
        for index, token in enumerate(token_ids):
            self.completion_tokens += 1
            tokens.append(TextToken(token, self._length, None if output.logprobs is None else output.logprobs[index]))
            if is_last_silent and index == len(token_ids) - 1:
                break
            piece = self._detokenizer.append(token)
            self._length += len(piece)
            text += self._stops.feed(piece, may_stop=self._may_stop)
            if self._stops.matched is not None:
                break
        return text

    @property
    def _may_stop(self) -> bool:
        return self.completion_tokens > self._options.min_tokens
