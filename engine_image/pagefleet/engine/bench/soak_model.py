"""A preset that can be served: its random weights with a tokenizer that has a text for every token."""

import json
from pathlib import Path

from pagefleet.engine.bench.presets import PRESETS
from pagefleet.engine.bench.setup import model_folder

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
"""Token ids 0 to 2; the presets' configuration calls 1 the begin and 2 the end."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_served_preset(name: str, folder: Path) -> Path:
    """Link a preset's checkpoint into a folder, write a tokenizer beside it and return the folder."""
    for file in model_folder("", name).iterdir():
        (folder / file.name).symlink_to(file)
    write_tokenizer(folder, vocabulary_size=PRESETS[name].vocabulary_size)
    return folder


def write_tokenizer(folder: Path, *, vocabulary_size: int) -> None:
    """Write a tokenizer without merges: a text is its bytes, and a token behind those of bytes is a number."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    spellings = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    spellings += [f"Ġ{number}" for number in range(len(spellings), vocabulary_size)]  # Ġ is how a space is spelled
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(spellings)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
