"""The offline class: texts in, texts and scores out, and no torch before it is named."""

import subprocess
import sys

import pytest

from pagefleet.engine import LLM, SamplingParameters
from pagefleet.engine.errors import RequestRefused
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(make_tiny_model(tmp_path_factory.mktemp("model"))), kv_cache_memory_bytes=2**22, threads=1)


def test_texts_in_and_out(llm: LLM) -> None:
    sampling = SamplingParameters(max_tokens=12, temperature=0.0, ignore_eos=True, logprobs=1)
    texts = ["once upon a time", "hello 🦀"]

    generations = llm.generate(texts, sampling)

    prompts = [llm.tokenizer.encode(text, add_special_tokens=True) for text in texts]
    by_tokens = llm.generate(prompts, sampling)
    assert [each.token_ids for each in generations] == [each.token_ids for each in by_tokens]
    for generation, silent in zip(generations, by_tokens, strict=True):
        shown = [token for token in generation.token_ids if not llm.tokenizer.is_special(token)]
        assert generation.text == llm.tokenizer.decode(shown)
        assert silent.text is None
        assert generation.logprobs is not None
        assert [scores.token_id for scores in generation.logprobs] == generation.token_ids


def test_a_stop_token_is_no_text(llm: LLM) -> None:
    sampling = SamplingParameters(max_tokens=12, allowed_token_ids=(70,), stop_token_ids=(70,), ignore_eos=True)

    (generation,) = llm.generate(["once"], sampling)

    assert (generation.text, generation.token_ids, generation.finish_reason) == ("", [70], "stop")


def test_the_default_is_sixteen_tokens(llm: LLM) -> None:
    assert len(llm.generate(["once"])[0].token_ids) <= 16


def test_a_wrong_parameter_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(RequestRefused, match="top_p is 2"):
        llm.generate(["once"], SamplingParameters(max_tokens=4, top_p=2.0))
    assert not llm.core.has_work()


def test_the_package_brings_no_torch() -> None:
    code = "import pagefleet.engine, sys; assert 'torch' not in sys.modules; pagefleet.engine.EngineConfig"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "engine_image:crds"})
