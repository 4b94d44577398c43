"""What the server does with a prompt before it is submitted."""

import random
from pathlib import Path
from typing import Any, cast

import pytest

from pagefleet.engine.errors import RequestRefused
from pagefleet.engine.server.protocol import ChatMessage, TemplateFields
from pagefleet.engine.server.serving import Serving
from pagefleet.engine.tokenizer import load_tokenizer
from tests.support.tiny_models import make_byte_level_tokenizer

MESSAGES = [ChatMessage(role="user", content="hi")]


def serving(folder: Path, *, trusts_chat_templates: bool) -> Serving:
    nothing = cast(Any, None)  # encoding needs the tokenizer alone
    return Serving(
        client=nothing,
        ready=nothing,
        tokenizer=load_tokenizer(make_byte_level_tokenizer(folder), None),
        metrics=nothing,
        model_name="tiny",
        created=0,
        seeds=random.Random(0),
        trusts_chat_templates=trusts_chat_templates,
    )


async def test_a_trusted_template_is_used(tmp_path: Path) -> None:
    trusting = serving(tmp_path, trusts_chat_templates=True)
    fields = TemplateFields(chat_template="{{ messages[0]['content'] }}{{ mark }}", chat_template_kwargs={"mark": "!"})

    prompt = await trusting.encode_chat(MESSAGES, fields, add_special_tokens=False)

    assert trusting.tokenizer.decode(prompt) == "hi!"


async def test_another_one_is_refused_with_the_flag_that_would_trust_it(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="--trust-request-chat-template") as caught:
        await serving(tmp_path, trusts_chat_templates=False).encode_chat(
            MESSAGES, TemplateFields(chat_template="x"), add_special_tokens=False
        )

    assert caught.value.parameter == "chat_template"
