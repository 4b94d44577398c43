from pathlib import Path
from typing import Any

import pytest

from pagefleet.engine.errors import RequestRefused, StartupError
from pagefleet.engine.model_source import resolve_model
from pagefleet.engine.tokenizer import Tokenizer, load_tokenizer
from tests.support.models import smollm2
from tests.support.tiny_models import make_byte_level_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(make_byte_level_tokenizer(tmp_path_factory.mktemp("tokenizer")), None)


def render(tokenizer: Tokenizer, **arguments: Any) -> str:
    return tokenizer.render_chat(MESSAGES, add_generation_prompt=True, template_arguments=arguments)


def test_a_rendered_chat_holds_its_begin_token(tokenizer: Tokenizer) -> None:
    text = render(tokenizer)

    assert text == "<|begin|><|user|>hi<|end|><|assistant|>"
    assert tokenizer.encode(text, add_special_tokens=False)[:2] == [0, 3]
    assert tokenizer.encode("hi", add_special_tokens=True)[0] == 0
    assert tokenizer.encode("hi", add_special_tokens=False)[0] != 0


def test_special_tokens_are_known(tokenizer: Tokenizer) -> None:
    assert [token for token in range(8) if tokenizer.is_special(token)] == [0, 1, 2, 3, 4]


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestRefused, match="surrogate"):
        tokenizer.encode("\ud800", add_special_tokens=False)


def test_no_request_brings_its_own_template(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestRefused, match="cannot set chat_template") as caught:
        render(tokenizer, chat_template="{% for i in range(10**9) %}{% endfor %}")

    assert caught.value.parameter == "chat_template_kwargs"


def test_a_template_may_be_another_and_a_message_left_open(tokenizer: Tokenizer) -> None:
    def rendered(**options: Any) -> str:
        return tokenizer.render_chat(MESSAGES, add_generation_prompt=False, template_arguments={}, **options)

    assert rendered(chat_template="{{ messages[0]['content'] }}!") == "hi!"
    assert rendered(continue_final_message=True) == "<|begin|><|user|>hi"
    with pytest.raises(RequestRefused, match="the request's chat template") as caught:
        rendered(chat_template="{{ 1 + ")
    assert caught.value.parameter == "chat_template"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['content'] + 1 }}", "refuses these messages"),
    ],
)
def test_what_the_template_cannot_do_is_refused(tmp_path: Path, template: str | None, message: str) -> None:
    tokenizer = load_tokenizer(make_byte_level_tokenizer(tmp_path, chat_template=template), None)

    with pytest.raises(RequestRefused, match=message) as caught:
        render(tokenizer)
    assert caught.value.parameter == "messages"


def test_template_arguments_reach_the_template(tmp_path: Path) -> None:
    template = "{{ messages[0]['content'] }}{% if shout %}!{% endif %}"
    tokenizer = load_tokenizer(make_byte_level_tokenizer(tmp_path, chat_template=template), None)

    assert render(tokenizer) == "hi"
    assert render(tokenizer, shout=True) == "hi!"


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(StartupError, match=f"no tokenizer could be loaded from {tmp_path}"):
        load_tokenizer(tmp_path, None)


@pytest.mark.real_model
def test_a_gguf_file_brings_tokenizer_and_template() -> None:
    source = resolve_model(smollm2(), lambda _share: None)
    tokenizer = load_tokenizer(source.folder, source.gguf_file)

    tokens = tokenizer.encode("naïve 你好", add_special_tokens=False)

    assert tokenizer.decode(tokens) == "naïve 你好"
    assert render(tokenizer).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
