"""`bench quality`: its numbers by hand, a tiny model against itself and rounded, bad input, limits."""

import json
from dataclasses import replace
from functools import partial
from math import exp, log
from pathlib import Path

import pytest
import torch

from pagefleet.engine.bench.agreement import Agreement
from pagefleet.engine.bench.quality import Choice, QualityOptions, QualityTooLow, choices_of, run_quality
from pagefleet.engine.bench.quality_text import SHIPPED_TEXT, read_text, windows_of
from pagefleet.engine.bench.teacher_forcing import teacher_forced_rows
from pagefleet.engine.config import EngineConfig
from pagefleet.engine.errors import StartupError
from pagefleet.engine.llm import LLM
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.tiny_models import make_byte_level_tokenizer, make_tiny_llama

engine_config = partial(
    EngineConfig, device="cpu", dtype="float32", threads=1, attention_backend="gather", linear_backend="torch"
)
TEXT = " ".join(str(number * number) for number in range(300))


@pytest.fixture
def options(tmp_path: Path) -> QualityOptions:
    folder = make_byte_level_tokenizer(make_tiny_llama(tmp_path / "model"))
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    engine = engine_config(model=str(folder))
    return QualityOptions(engine=engine, choices=[Choice(weights="int8")], text=text, window_tokens=200)


def test_agreement_by_hand() -> None:
    found = Agreement()
    reference = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).log() + 3  # a constant on logits changes nothing
    found.add(reference, torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log(), torch.tensor([1, 1]))
    found.add(reference[:1], torch.tensor([[0.1, 0.9]]).log(), torch.tensor([0]))
    first = 0.75 * log(0.75 / 0.5) + 0.25 * log(0.25 / 0.5)
    last = 0.75 * log(0.75 / 0.1) + 0.25 * log(0.25 / 0.9)
    assert found.kl_nats == pytest.approx((first + last) / 3, rel=1e-5)
    assert found.top1_agreement == pytest.approx(2 / 3)
    assert found.reference_perplexity == pytest.approx(exp(-(log(0.25) + log(0.75) + log(0.75)) / 3), rel=1e-5)
    assert found.perplexity == pytest.approx(exp(-(log(0.5) + log(0.75) + log(0.1)) / 3), rel=1e-5)
    assert found.perplexity_change == pytest.approx(found.perplexity / found.reference_perplexity - 1)


def test_what_is_no_number_is_not_counted_as_equal() -> None:
    found = Agreement()
    found.add(torch.zeros(1, 2), torch.full((1, 2), torch.nan), torch.tensor([0]))
    assert found.kl_nats != found.kl_nats


def test_windows_begin_with_the_models_begin_tokens() -> None:
    tokens = list(range(100))
    assert windows_of(tokens, 40, [7]) == [[7, *range(40)], [7, *range(40, 80)], [7, *range(80, 100)]]
    assert windows_of(tokens, 60, []) == [list(range(60)), list(range(60, 100))]
    assert windows_of(tokens, 90, []) == [list(range(90))], "a short rest is left out"
    assert windows_of(tokens, 300, []) == [tokens]


def test_rows_are_those_of_the_model_called_by_hand(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model")
    tokens = [(7 * index) % 500 for index in range(150)]
    core = LLM(engine_config(model=str(folder), max_num_seqs=1, max_num_batched_tokens=48, block_size=8)).core
    (expected,) = teacher_forced_logits(load_engine_model(folder), [tokens], chunk=150)
    for _ in range(2):  # the prefix cache of the first time must not hide rows from the second
        rows = [logits.clone() for _, logits in teacher_forced_rows(core, tokens)]
        assert torch.allclose(torch.cat(rows), expected[:-1], atol=1e-4)


def test_float32_equals_itself_and_rounding_is_seen(options: QualityOptions, tmp_path: Path) -> None:
    path = tmp_path / "quality.json"
    choices = choices_of(["none", "int8"], [("lm_head",), ()], ["auto", "bfloat16"])
    lines: list[str] = []
    report = run_quality(replace(options, choices=choices, json_path=path), lines.append)
    assert json.loads(path.read_text()) == report
    plain, plain_bfloat16, head_kept, _, all_rounded, _ = json.loads(path.read_text())["choices"]
    assert (plain["weights"], plain["ignored"], plain["kv_cache_dtype"]) == ("none", [], "auto")
    assert plain["kl_nats"] < 1e-6
    assert (plain["top1_agreement"], plain["perplexity"]) == (1.0, report["reference_perplexity"])
    assert head_kept["ignored"] == ["lm_head"]
    assert plain["kl_nats"] < plain_bfloat16["kl_nats"] < head_kept["kl_nats"] < all_rounded["kl_nats"]
    assert all(each["positions"] == report["positions"] for each in (plain, head_kept, all_rounded))
    assert len(lines[1].splitlines()) == 1 + len(choices)


def test_a_model_is_compared_with_another(options: QualityOptions, tmp_path: Path) -> None:
    """As a quantized checkpoint is with what it was made from."""
    other, wider = (
        make_byte_level_tokenizer(make_tiny_llama(tmp_path / name, seed=1, vocab=vocabulary))
        for name, vocabulary in (("other", 512), ("wider", 520))
    )
    path = tmp_path / "quality.json"
    compared = replace(options, choices=[Choice()], json_path=path)
    found = []
    for reference in (options.engine.model, str(other)):
        run_quality(replace(compared, reference=reference), lambda _: None)
        found.append(json.loads(path.read_text())["choices"][0]["kl_nats"])
    assert found[0] < 1e-6
    assert found[1] > 0.01
    with pytest.raises(StartupError, match="the model has 512 tokens and --reference 520"):
        run_quality(replace(compared, reference=str(wider)), lambda _: None)


def test_beyond_a_limit_the_report_is_written_and_sentences_name_the_choice(
    options: QualityOptions, tmp_path: Path
) -> None:
    path = tmp_path / "quality.json"
    with pytest.raises(QualityTooLow) as raised:
        run_quality(replace(options, max_kl=0.0, min_agreement=1.1, json_path=path), lambda _: None)
    kl, agreement = raised.value.sentences
    assert kl.startswith("weights int8, KV cache auto: KL 0.")
    assert kl.endswith(" nats is above --max-kl 0")
    assert agreement.endswith(" is below --min-agreement 1.1")
    assert json.loads(path.read_text())["positions"] > 0
    run_quality(replace(options, max_kl=10.0, min_agreement=0.0), lambda _: None)


def test_every_combination_once() -> None:
    choices = choices_of(["none", "int8", "int8"], [("lm_head",), ()], ["auto"])
    assert choices == [Choice(), Choice(weights="int8", ignored=("lm_head",)), Choice(weights="int8")]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"choices": []}, "name no choice"),
        ({"choices": [Choice(weights="int3")]}, "--weights int3 is unknown; use none, int8 or int4"),
        ({"choices": [Choice(weights="int8", ignored=("head",))]}, "--ignore head names no part of a model; use"),
        ({"choices": [Choice(kv_cache_dtype="int3")]}, "--kv-cache-dtype int3 is not supported; use auto,"),
        ({"window_tokens": 4096}, "--window 4096 does not fit this model's context: use 510 or less"),
        ({"text": Path("none.txt")}, "--text none.txt cannot be read: No such file or directory; name a text file"),
        ({"engine": engine_config(model=""), "preset": "XL"}, "--preset XL is unknown; use S, M, L"),
    ],
)
def test_wrong_options(options: QualityOptions, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(StartupError) as raised:
        run_quality(replace(options, **changes), lambda _: None)  # type: ignore[arg-type]
    assert sentence in str(raised.value)


def test_texts_that_do_not_serve(options: QualityOptions, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("too short")
    with pytest.raises(StartupError, match=r"^--text has \d+ tokens, too few to judge by: give 64 or more$"):
        run_quality(options, lambda _: None)
    path.write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(StartupError, match=r"is not UTF-8: byte 2 is 0xfc; name a text file$"):
        read_text(path)


def test_a_model_without_a_tokenizer(options: QualityOptions) -> None:
    for file in Path(options.engine.model).glob("*token*"):
        file.unlink()
    with pytest.raises(StartupError, match="no tokenizer could be loaded from"):
        run_quality(options, lambda _: None)


def test_a_tokenizer_of_another_model(options: QualityOptions) -> None:
    make_tiny_llama(Path(options.engine.model), vocab=100)
    with pytest.raises(StartupError, match=r"^the tokenizer makes token \d+, but the model has only 100: give"):
        run_quality(replace(options, text=None), lambda _: None)


def test_the_shipped_text_says_where_it_is_from() -> None:
    assert 2000 <= len(read_text(None).split()) <= 3000
    assert "Darwin" in SHIPPED_TEXT.with_name("quality_text_source.txt").read_text()
