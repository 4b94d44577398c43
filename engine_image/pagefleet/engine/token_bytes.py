"""Which bytes a token stands for: what text is made of before it is cut into characters.

Tokenizers that spell bytes, in one of two ways, cover nearly all models. GPT-2's writes each byte as a printable
character; SentencePiece's writes a space as "▁" and bytes that are no vocabulary entry as "<0x0A>".
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Spelling:
    """How a tokenizer writes bytes."""

    to_bytes: Callable[[str], bytes]
    """Turn a vocabulary entry into its bytes."""
    drops_first_space: bool = False
    """A text's first space belongs to the spelling and not to the text."""


def find_spelling(decoder: dict[str, Any]) -> Spelling | None:
    """Read a `tokenizers` decoder's own description; None when its tokens are not plain bytes."""
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if [kind for kind in kinds if kind != "Fuse"] == ["ByteLevel"]:
        return Spelling(_byte_level)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _is_space_mark(steps[0]):
        if not steps[3:]:
            return Spelling(_byte_fallback)
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        return Spelling(_byte_fallback, drops_first_space=True) if steps[3:] == [strip] else None
    return None


def spelling_of(backend: Any) -> Spelling | None:
    """Return how a `tokenizers.Tokenizer` writes bytes; None when it does not."""
    decoder = getattr(backend, "decoder", None)
    return None if decoder is None else find_spelling(json.loads(decoder.__getstate__()))


def _is_space_mark(step: dict[str, Any]) -> bool:
    return step.get("pattern") == {"String": SPACE_MARK} and step.get("content") == " "


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's characters for bytes: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    spelled = [_ALPHABET.get(character) for character in token]
    known = [byte for byte in spelled if byte is not None]
    return bytes(known) if len(known) == len(spelled) else token.encode()  # else an added token, written as it is


def _byte_fallback(token: str) -> bytes:
    if found := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(found[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()
