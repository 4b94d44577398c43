"""The presets' tokenizer: exactly the vocabulary, always the same, and any text and any tokens go through it."""

import sysconfig
from pathlib import Path

import pytest

from pagefleet.engine.bench.preset_tokenizer import write_tokenizer
from pagefleet.engine.tokenizer import Tokenizer, load_tokenizer

TEXT = "def größe(x):\n    return 🙂 + x"


def token_texts(tokenizer: Tokenizer, size: int) -> list[str]:
    return tokenizer.token_texts(range(size))


def test_every_id_is_a_token_and_training_again_gives_the_same(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_tokenizer(2000, tmp_path / name)
    first, second = (tmp_path / name / "tokenizer.json" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    tokenizer = load_tokenizer(tmp_path / "first", None)
    texts = token_texts(tokenizer, 2001)
    assert texts[:3] == ["<unk>", "<s>", "</s>"]
    assert all(texts[:2000])
    assert not texts[2000], "the vocabulary ends there"
    assert not any(text.startswith("<unused") for text in texts), "the texts fill it"
    assert tokenizer.is_bytewise
    assert [token for token in range(2000) if tokenizer.is_special(token)] == [0, 1, 2]
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=True)) == TEXT


def test_without_sources_the_vocabulary_is_filled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "none"))
    write_tokenizer(512, tmp_path)
    tokenizer = load_tokenizer(tmp_path, None)
    assert token_texts(tokenizer, 513)[510:] == ["<unused251>", "<unused252>", ""]
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=True)) == TEXT


def test_a_preset_can_be_chatted_with(tmp_path: Path) -> None:
    write_tokenizer(600, tmp_path)
    tokenizer = load_tokenizer(tmp_path, None)
    text = tokenizer.render_chat([{"role": "user", "content": "hi"}], add_generation_prompt=True, template_arguments={})
    assert text == "<s>user: hi\nassistant: "
    assert tokenizer.encode(text, add_special_tokens=False)[0] == 1
