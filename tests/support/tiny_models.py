"""Make tiny random checkpoints and tokenizers on disk, small enough to make and run in a test."""

import json
from pathlib import Path
from typing import Any

BEGIN_TOKEN = "<|begin|>"
END_TOKEN = "<|end|>"
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL_TOKENS = (BEGIN_TOKEN, END_TOKEN, *ROLE_TOKENS)
"""Token ids 0 to 4, in this order."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{{ preamble | default('') }}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Begins with the begin token, so encoding a rendered chat must not add a second one."""

CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the dog jumps over the fox",
    "once upon a time there was a little girl who lived in a little house near the woods",
    "hello hello hello world, this is a short story about a small model that writes small stories",
    "Grüße aus Köln, naïve café déjà vu, 你好世界 你好, こんにちは世界, 안녕하세요 세계, Привет мир, 🙂🙃🚀",
)


def make_tiny_llama(
    folder: Path,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    layers: int = 2,
    hidden: int = 32,
    vocab: int = 512,
    max_position_embeddings: int = 512,
    tie: bool = False,
    rope_parameters: dict[str, Any] | None = None,
    seed: int = 0,
    dtype: str = "float32",
    weight_scale: float = 0.5,
    attention_bias: bool = False,
) -> Path:
    """Save a random Llama checkpoint into `folder` and return the folder.

    `weight_scale` is the standard deviation of the weights; at 0.5 the logits of two tokens rarely come close, so a
    greedy continuation does not hang on rounding. The weights depend on `seed` and the sizes alone.
    """
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie,
        rope_parameters=rope_parameters or {"rope_type": "default", "rope_theta": 10000.0},
        attention_bias=attention_bias,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
        dtype=dtype,
    )
    return save_random_model(config, folder, seed=seed, weight_scale=weight_scale)


def save_random_model(config: Any, folder: Path, *, seed: int = 0, weight_scale: float = 0.5) -> Path:
    """Save a random checkpoint of any configuration into `folder`, in its dtype, and return the folder."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = config.dtype or torch.float32  # read first: building the model changes it
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1.0 + 0.1 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.copy_(weight_scale * torch.randn(parameter.shape, generator=generator))
    model.to(dtype).config.dtype = dtype
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    return folder


def make_byte_level_tokenizer(folder: Path, *, vocab: int = 512, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Train a byte-level BPE tokenizer into `folder` and return the folder.

    Every text encodes (all 256 bytes are tokens), most non-Latin characters take several tokens, and plain encoding
    puts the begin token first.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return _save(tokenizer, folder, chat_template)


def make_metaspace_tokenizer(folder: Path, *, vocab: int = 400, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Train a SentencePiece-like BPE tokenizer into `folder` and return the folder.

    As in Llama 2: a space is part of the word behind it, decoding drops the first one, unknown characters are bytes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - 256,
        special_tokens=list(SPECIAL_TOKENS),
        max_token_length=8,
        show_progress=False,
    )
    tokenizer.train_from_iterator([line for line in CORPUS if line.isascii()], trainer)
    vocabulary: dict[str, int] = dict(tokenizer.get_vocab())
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    model = json.loads(tokenizer.to_str())
    model["model"]["vocab"] = vocabulary
    return _save(Tokenizer.from_str(json.dumps(model)), folder, chat_template)


def _save(tokenizer: Any, folder: Path, chat_template: str | None) -> Path:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN_TOKEN} $A",
        pair=f"{BEGIN_TOKEN} $A $B",
        special_tokens=[(BEGIN_TOKEN, 0)],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN_TOKEN,
        eos_token=END_TOKEN,
        additional_special_tokens=list(ROLE_TOKENS),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    fast.save_pretrained(folder)
    return folder


def make_tiny_model(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE, **llama: Any) -> Path:
    """Save a random Llama checkpoint with its tokenizer into `folder` and return the folder."""
    make_tiny_llama(folder, **llama)
    return make_byte_level_tokenizer(folder, vocab=llama.get("vocab", 512), chat_template=chat_template)
