"""`pagefleet bench quality`: what rounded weights and KV caches change in a model's answers, against float32.

The text goes through the engine's own path, teacher forced, in windows that a step reads in chunks. The float32 engine
reads it once, and only its last hidden states are kept: its logits are computed again beside those of each choice, so
that memory holds two engines and a step's logits, never vocabulary times text.

JSON: `choices` holds for each weights x KV cache the mean KL(float32 || choice) in nats, the share of positions with
the same likeliest token, perplexity and its change as a share, and the positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from pagefleet.engine.bench.agreement import Agreement
from pagefleet.engine.bench.quality_text import read_text, windows_of
from pagefleet.engine.bench.setup import model_folder
from pagefleet.engine.bench.tables import check_writable, text_table, write_json
from pagefleet.engine.bench.teacher_forcing import model_of, teacher_forced_rows
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.kernels.choose import check_cache_dtype
from pagefleet.engine.llm import LLM
from pagefleet.engine.quantization import check_quantization
from pagefleet.engine.tokenizer import Tokenizer
from pagefleet.engine.transformers_setup import prepare_transformers

STEP_TOKENS = 128
"""A window comes in chunks of this size, so that most of what is attended to was stored by an earlier step."""

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Say how weights and KV cache are kept."""

    weights: str = "none"
    ignored: tuple[str, ...] = ()
    """Parts whose weights are not rounded."""
    kv_cache_dtype: str = "auto"

    def __str__(self) -> str:
        """Name the choice by its flags."""
        kept = f" without {','.join(self.ignored)}" if self.weights != "none" and self.ignored else ""
        return f"weights {self.weights}{kept}, KV cache {self.kv_cache_dtype}"


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """Say what to measure."""

    engine: EngineConfig
    """Weights and KV cache of it are replaced by those of each choice."""
    choices: Sequence[Choice]
    reference: str = ""
    """The model to compare with in float32, such as the one that was quantized; empty is the engine's own."""
    preset: str = "S"
    text: Path | None = None
    """A text file instead of the shipped text."""
    window_tokens: int = 512
    max_kl: float | None = None
    """Mean KL in nats of each choice at most."""
    min_agreement: float | None = None
    """Share of equal likeliest tokens of each choice at least."""
    json_path: Path | None = None


class QualityTooLow(Exception):
    """Say which choices are beyond the limits; the report is written already."""

    def __init__(self, sentences: list[str]) -> None:
        self.sentences = sentences
        super().__init__("\n".join(sentences))


def choices_of(
    weights: Sequence[str], ignored: Sequence[tuple[str, ...]], kv_cache_dtypes: Sequence[str]
) -> list[Choice]:
    """Return all weights x KV caches; each rounding of weights comes once for every set of ignored parts."""
    recipes = [
        (name, parts)
        for name in dict.fromkeys(weights)
        for parts in (dict.fromkeys(ignored) if name != "none" else [()])
    ]
    return [
        Choice(weights=name, ignored=parts, kv_cache_dtype=dtype)
        for name, parts in recipes
        for dtype in dict.fromkeys(kv_cache_dtypes)
    ]


def run_quality(options: QualityOptions, say: Say) -> dict[str, object]:
    """Measure, print and return the report.

    Raises StartupError or RequestRefused with the sentence for the user, and QualityTooLow.
    """
    check_writable("--json", options.json_path)
    _check_choices(options.choices)
    text = read_text(options.text)
    prepare_transformers()
    base = _settings(options)
    reference = LLM(
        msgspec.structs.replace(
            base,
            model=options.reference or base.model,
            dtype="float32",
            quantization="none",
            kv_cache_dtype="auto",
            block_size=None,
        )
    )
    windows = _windows(text, reference, options.window_tokens)
    positions = sum(len(window) - 1 for window in windows)
    found: list[Agreement] = []
    with tqdm(total=positions * (1 + len(options.choices)), unit="tok", disable=None) as bar:
        states = [_reference_states(reference, window, bar.update) for window in windows]
        found.extend(
            _compare(_configured(base, choice), reference, windows, states, bar.update) for choice in options.choices
        )
    report: dict[str, object] = {
        "model": options.engine.model or f"preset {options.preset}",
        "reference": options.reference or "the same model",
        "text": "shipped" if options.text is None else str(options.text),
        "window_tokens": options.window_tokens,
        "windows": len(windows),
        "positions": positions,
        "reference_perplexity": round(found[0].reference_perplexity, 4),
        "choices": [_summary(choice, each) for choice, each in zip(options.choices, found, strict=True)],
    }
    _print(report, options.choices, found, say)
    write_json(report, options.json_path)
    if sentences := [
        sentence
        for choice, each in zip(options.choices, found, strict=True)
        for sentence in _beyond(options, choice, each)
    ]:
        raise QualityTooLow(sentences)
    return report


def _check_choices(choices: Sequence[Choice]) -> None:
    if not choices:
        raise StartupError("--weights and --kv-cache-dtype name no choice; for example --weights int8")
    for choice in choices:
        check_quantization(choice.weights, choice.ignored, flag="--weights", ignore_flag="--ignore")
        check_cache_dtype(choice.kv_cache_dtype)


def _settings(options: QualityOptions) -> EngineConfig:
    """Return settings for one window at a time; raises StartupError for a preset that there is not."""
    model = options.engine.model or str(model_folder("", options.preset))
    return msgspec.structs.replace(
        options.engine, model=model, max_num_seqs=1, max_num_batched_tokens=STEP_TOKENS, enable_prefix_caching=False
    )


def _configured(base: EngineConfig, choice: Choice) -> EngineConfig:
    return msgspec.structs.replace(
        base,
        quantization=choice.weights,
        quantization_ignore=choice.ignored,
        kv_cache_dtype=choice.kv_cache_dtype,
    )


def _windows(text: str, reference: LLM, window_tokens: int) -> list[list[int]]:
    """Return the text in the model's tokens; raises StartupError when window or vocabulary do not fit the model."""
    tokenizer: Tokenizer = reference.tokenizer
    info = reference.core.info
    begin = tokenizer.encode("", add_special_tokens=True)
    most = info.max_model_len - len(begin) - 1
    if window_tokens > most:
        raise StartupError(f"--window {window_tokens} does not fit this model's context: use {most} or less")
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    if token_ids and max(token_ids) >= info.vocabulary_size:
        raise StartupError(
            f"the tokenizer makes token {max(token_ids)}, but the model has only {info.vocabulary_size}: "
            "give a folder whose tokenizer belongs to the model"
        )
    return windows_of(token_ids, window_tokens, begin)


def _reference_states(reference: LLM, window: list[int], on_positions: Callable[[int], object]) -> torch.Tensor:
    """Return the [tokens - 1, hidden] states that predict a window's tokens."""
    rows = []
    for hidden, _ in teacher_forced_rows(reference.core, window):
        rows.append(hidden.clone())
        on_positions(len(hidden))
    return torch.cat(rows)


@torch.inference_mode()
def _compare(
    config: EngineConfig,
    reference: LLM,
    windows: Sequence[list[int]],
    states: Sequence[torch.Tensor],
    on_positions: Callable[[int], object],
) -> Agreement:
    """Run the windows through one choice's engine."""
    core, agreement = LLM(config).core, Agreement()
    sizes = [each.info.vocabulary_size for each in (core, reference.core)]
    if sizes[0] != sizes[1]:
        raise StartupError(
            f"the model has {sizes[0]} tokens and --reference {sizes[1]}: give the model that it was made from"
        )
    reference_logits = model_of(reference.core).logits
    for window, expected in zip(windows, states, strict=True):
        row = 0
        for hidden, logits in teacher_forced_rows(core, window):
            end = row + len(hidden)
            agreement.add(reference_logits(expected[row:end]), logits, torch.tensor(window[row + 1 : end + 1]))
            row = end
            on_positions(len(hidden))
    return agreement


def _summary(choice: Choice, found: Agreement) -> dict[str, object]:
    return {
        "weights": choice.weights,
        "ignored": list(choice.ignored),
        "kv_cache_dtype": choice.kv_cache_dtype,
        "kl_nats": round(found.kl_nats, 6),
        "top1_agreement": round(found.top1_agreement, 5),
        "perplexity": round(found.perplexity, 4),
        "perplexity_change": round(found.perplexity_change, 6),
        "positions": found.positions,
    }


def _print(report: dict[str, object], choices: Sequence[Choice], found: Sequence[Agreement], say: Say) -> None:
    say(
        f"{report['model']}: {report['positions']} positions in {report['windows']} windows of "
        f"{report['window_tokens']} tokens, perplexity in float32 {found[0].reference_perplexity:.2f}"
    )
    say(
        text_table(
            ("weights", "left alone", "KV cache", "KL, nats", "same top token", "perplexity", "change"),
            [
                (
                    choice.weights,
                    ",".join(choice.ignored) or "-",
                    choice.kv_cache_dtype,
                    f"{each.kl_nats:.5f}",
                    f"{each.top1_agreement:.1%}",
                    f"{each.perplexity:.2f}",
                    f"{each.perplexity_change:+.2%}",
                )
                for choice, each in zip(choices, found, strict=True)
            ],
        )
    )


def _beyond(options: QualityOptions, choice: Choice, found: Agreement) -> list[str]:
    """Return a sentence for each limit that a choice is beyond; what is no number is beyond all."""
    sentences = []
    if options.max_kl is not None and not found.kl_nats <= options.max_kl:
        sentences.append(f"{choice}: KL {found.kl_nats:.4f} nats is above --max-kl {options.max_kl:g}")
    if options.min_agreement is not None and not found.top1_agreement >= options.min_agreement:
        sentences.append(
            f"{choice}: agreement {found.top1_agreement:.3f} is below --min-agreement {options.min_agreement:g}"
        )
    return sentences
