"""A tokenizer for a preset: byte-level BPE of exactly its vocabulary, trained on the sources of Python's own library.

Every installation has these texts, so nothing is downloaded, and the tokens that BPE finds in them are as long as those
of real models: turning them into text costs what it costs there. Bytes are the spelling of most models since GPT-2, and
any sequence of tokens has a text. The text hangs on Python's version; the tokens that a benchmark counts do not.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""So that a preset can be served."""

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
"""Token ids 0 to 2: the presets' configuration names the begin and the end token by these numbers."""

TEXT_BYTES_PER_TOKEN = 128
"""Bytes of text for each entry of the vocabulary: enough to fill it, few enough that training takes a second or two."""


def write_tokenizer(vocabulary_size: int, folder: Path) -> None:
    """Train and write the tokenizer of a model folder; the same one each time on one installation."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_library_sources(TEXT_BYTES_PER_TOKEN * vocabulary_size), trainer)
    # An installation without sources has too little text: ids that no merge makes are words of their own.
    tokenizer.add_tokens([f"<unused{index}>" for index in range(vocabulary_size - tokenizer.get_vocab_size())])
    _, begin, end = SPECIAL_TOKENS
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def _library_sources(most_bytes: int) -> Iterator[str]:
    """Yield whole modules of the standard library, by name, until they have so many bytes."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")):
        if most_bytes <= 0:
            return
        most_bytes -= path.stat().st_size
        yield path.read_text(encoding="utf-8", errors="replace")
