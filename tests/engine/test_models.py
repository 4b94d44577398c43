"""How checkpoints become models: names, tied heads, lengths, and what a native start imports."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagefleet.engine.errors import StartupError
from pagefleet.engine.layers.rotary import RotaryTable, full_width_order, rotate
from tests.support.forward import load_engine_model, teacher_forced_logits
from tests.support.tiny_families import LONGROPE, SIZES, family_config
from tests.support.tiny_models import make_tiny_llama, save_random_model

PROMPT = [[5, 6, 7, 8, 9]]


def logits_of(folder: Path) -> torch.Tensor:
    (logits,) = teacher_forced_logits(load_engine_model(folder), PROMPT, chunk=5)
    return logits


def edit_weights(folder: Path, **changes: Any) -> None:
    """Rename weights by prefix (`rename=(old, new)`) or set one (`name=tensor`, with __ for a dot)."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if "rename" in changes:
        old, new = changes.pop("rename")
        tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: value for name, value in tensors.items()
        }
    tensors.update({name.replace("__", "."): value for name, value in changes.items()})
    save_file(tensors, path)


@pytest.mark.parametrize("prefix", ["", "language_model.model."])
def test_the_decoder_is_found_under_its_prefix(tmp_path: Path, prefix: str) -> None:
    folder = make_tiny_llama(tmp_path)
    expected = logits_of(folder)
    edit_weights(folder, rename=("model.", prefix))
    assert torch.equal(logits_of(folder), expected)


def test_tied_heads(tmp_path: Path) -> None:
    """A head in the file wins over `tie_word_embeddings`, as in transformers, and takes memory only if it differs."""
    folder = make_tiny_llama(tmp_path, tie=True)
    tied = load_engine_model(folder)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    expected = logits_of(folder)
    edit_weights(folder, lm_head__weight=embedding.clone())
    assert load_engine_model(folder).weight_bytes == tied.weight_bytes
    assert torch.equal(logits_of(folder), expected)
    edit_weights(folder, lm_head__weight=2 * embedding)
    assert load_engine_model(folder).weight_bytes == tied.weight_bytes + embedding.nbytes
    assert torch.allclose(logits_of(folder), 2 * expected)


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, tie=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(StartupError, match=r"weight lm_head\.weight is missing"):
        load_engine_model(folder)


def test_longrope_ends_where_it_would_change(tmp_path: Path) -> None:
    folder = save_random_model(family_config("phi3-longrope"), tmp_path)
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 1024
    assert load_engine_model(folder).context_length == 256


def test_a_partial_rotation_is_one_of_reordered_heads() -> None:
    head_dim, rotary_dim = 10, 4
    query, key = torch.randn(2, 3, 1, head_dim, generator=torch.Generator().manual_seed(0))
    angles = torch.randn(3, 1, rotary_dim // 2, generator=torch.Generator().manual_seed(1))

    def table(half: torch.Tensor) -> RotaryTable:
        doubled = torch.cat((half, half), dim=-1)
        return RotaryTable(doubled.cos(), doubled.sin())

    def partly(heads: torch.Tensor) -> torch.Tensor:
        return torch.cat((rotate(heads[..., :rotary_dim], table(angles)), heads[..., rotary_dim:]), dim=-1)

    order = full_width_order(head_dim, rotary_dim)
    assert sorted(order) == list(range(head_dim))
    whole = table(torch.cat((angles, torch.zeros(3, 1, head_dim // 2 - rotary_dim // 2)), dim=-1))
    actual = (rotate(query[..., order], whole) * rotate(key[..., order], whole)).sum(-1)
    assert torch.allclose(actual, (partly(query) * partly(key)).sum(-1), atol=1e-6)


def test_a_start_with_a_native_model_imports_only_what_it_needs(tmp_path: Path) -> None:
    """A modeling file takes up to a second of a start, and so do distributed tensors with sympy."""
    save_random_model(family_config("gemma3"), tmp_path)
    program = (
        "import sys; from pagefleet.engine.config import EngineConfig; from pagefleet.engine.llm import LLM; "
        "LLM(EngineConfig(model=sys.argv[1], device='cpu', threads=1, kv_cache_memory_bytes=4 * 2**20)); "
        "print([name for name in ('transformers.modeling_utils', 'transformers.masking_utils', "
        "'transformers.models.gemma3.modeling_gemma3', 'torch.distributed.tensor', 'sympy') if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    ).stdout
    assert output.strip() == "[]"


def gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=1)


def falcon() -> Any:
    from transformers import FalconConfig

    return FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)


def falcon_alibi() -> Any:
    from transformers import FalconConfig

    return FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, alibi=True)


def t5() -> Any:
    from transformers import T5Config

    return T5Config(vocab_size=64, d_model=16, d_kv=8, num_layers=2, num_heads=2, d_ff=32)


def mamba() -> Any:
    from transformers import MambaConfig

    return MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2)


def rwkv() -> Any:
    from transformers import RwkvConfig

    return RwkvConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2)


def lfm2() -> Any:
    from transformers import Lfm2Config

    return Lfm2Config(**{**SIZES, "num_hidden_layers": 2}, layer_types=["conv", "full_attention"])


def gemma3_with_vision() -> Any:
    from transformers import Gemma3Config

    return Gemma3Config(text_config=family_config("gemma3").to_dict())


def bert() -> Any:
    from transformers import BertConfig

    return BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)


def gpt_oss() -> Any:
    from transformers import GptOssConfig

    return GptOssConfig(**SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2)


def minicpm3() -> Any:
    from transformers import MiniCPM3Config

    return MiniCPM3Config(
        **{**SIZES, "num_key_value_heads": 4},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
    )


def dynamic_rope() -> Any:
    from transformers import PhiConfig

    return PhiConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})


def longrope_on_the_back_end() -> Any:
    from transformers import PhimoeConfig

    rope = {**LONGROPE, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6, "short_mscale": 1.0, "long_mscale": 1.0}
    return PhimoeConfig(**SIZES, rope_parameters={**rope, "original_max_position_embeddings": 128})


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (falcon, "its attention does not go through transformers' attention interface"),
        (falcon_alibi, "its positions are biases on the scores (ALiBi)"),
        (t5, "it has an encoder, and this engine runs decoders alone"),
        (mamba, "it has layers of type linear_attention"),
        (rwkv, "it keeps a state beside keys and values, as state spaces and convolutions do"),
        (lfm2, "it has layers of type conv, and paged are full_attention and sliding_attention"),
        (gemma3_with_vision, "it is a multimodal wrapper, and this engine reads text alone"),
        (bert, "it attends in both directions"),
        (gpt_oss, "its attention takes s_aux, and paged attention adds nothing to the scores"),
        (minicpm3, "its keys and values differ in size (multi-head latent attention)"),
        (dynamic_rope, "its rope type dynamic changes with the length of the sequence"),
        (longrope_on_the_back_end, "its rope type longrope changes with the length of the sequence"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, make: Any, missing: str) -> None:
    """Each is refused before a weight is looked for."""
    config = make()
    config.save_pretrained(tmp_path)
    with pytest.raises(StartupError) as error:
        load_engine_model(tmp_path)
    assert "does not run on the transformers back end: " in str(error.value)
    assert missing in str(error.value)
    assert "\n" not in str(error.value)


def test_native_code_can_be_asked_for(tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path)
    with pytest.raises(StartupError, match="--model-impl native: there is no native code for architecture "):
        load_engine_model(tmp_path, model_impl="native")


def test_the_back_end_wants_all_weights(tmp_path: Path) -> None:
    folder = save_random_model(gpt2(), tmp_path)
    edit_weights(folder, rename=("transformer.h.1.mlp.c_fc.", "elsewhere."))
    with pytest.raises(StartupError, match=r"weight transformer\.h\.1\.mlp\.c_fc\.bias is missing"):
        load_engine_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(StartupError, match=r"holds no model\.safetensors"):
        load_engine_model(folder)


def test_models_whose_tokens_see_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    folder = save_random_model(gpt2(), tmp_path)
    load_engine_model(folder)
    plain = GPT2MLP.forward
    monkeypatch.setattr(GPT2MLP, "forward", lambda self, hidden: plain(self, hidden) + hidden.roll(1, dims=1))
    with pytest.raises(StartupError, match="its tokens see each other outside attention"):
        load_engine_model(folder)


def test_gemma_that_reads_both_ways_is_refused(tmp_path: Path) -> None:
    from transformers import Gemma3TextConfig

    Gemma3TextConfig(
        **SIZES, head_dim=16, use_bidirectional_attention=True, architectures=["Gemma3ForCausalLM"]
    ).save_pretrained(tmp_path)
    with pytest.raises(StartupError, match="the model attends in both directions"):
        load_engine_model(tmp_path)
