"""Turn token ids into text as they arrive, without ever splitting or losing a character.

One token may end inside a character, and some tokenizers write a leading space only when a token stands before it.
Where tokens are known as bytes, the bytes run through an incremental UTF-8 decoder. For other tokenizers a short window
of tokens is decoded again and again, and only what is new at its end is passed on.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
"""What decoders write for bytes that are not (yet) a character."""

CONTEXT_TOKENS = 5
"""Prompt tokens that come before: enough for the space rules of every tokenizer family (vLLM uses the same)."""

MAX_HELD_TOKENS = 16
"""A character has at most 4 bytes, so at most 4 tokens: this many without text are no character in the making."""


class TokenDecoder(Protocol):
    """What the detokenizer needs of a tokenizer."""

    @property
    def is_bytewise(self) -> bool:
        """Tell whether a text is nothing but the bytes of its tokens."""

    @property
    def drops_first_space(self) -> bool:
        """Tell whether the first space of a text is no text."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode all tokens, special ones too."""

    def is_special(self, token_id: int) -> bool:
        """Tell whether a token is markup and not text."""


class Detokenizer:
    """Decode one sequence incrementally."""

    def __init__(self, decoder: TokenDecoder, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        context = [token for token in prompt_token_ids[-CONTEXT_TOKENS:] if not self._is_skipped(token)]
        self._reader = _ByteReader(decoder, context) if decoder.is_bytewise else _WindowReader(decoder, context)

    def append(self, token_id: int) -> str:
        """Take one token and return the text that is now certain."""
        return "" if self._is_skipped(token_id) else self._reader.append(token_id)

    def flush(self) -> str:
        """Return the rest at the end of the sequence; bytes that are no character become U+FFFD."""
        return self._reader.flush()

    def _is_skipped(self, token_id: int) -> bool:
        return self._skip_special_tokens and self._decoder.is_special(token_id)


class _ByteReader:
    def __init__(self, decoder: TokenDecoder, context: Sequence[int]) -> None:
        self._decoder = decoder
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        # A character that the context begins is completed by the first tokens.
        before = b"".join(decoder.token_bytes(token) for token in context)
        self._utf8.decode(before)
        self._drops_space = decoder.drops_first_space and not before

    def append(self, token_id: int) -> str:
        text = self._utf8.decode(self._decoder.token_bytes(token_id))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowReader:
    def __init__(self, decoder: TokenDecoder, context: list[int]) -> None:
        self._decoder = decoder
        self._window = context
        self._read = len(context)  # tokens of the window whose text is complete and passed on
        self._shown_length = len(self._decode(context))
        self._held_tokens = 0

    def append(self, token_id: int) -> str:
        self._window.append(token_id)
        self._held_tokens += 1
        return self._take(is_forced=self._held_tokens >= MAX_HELD_TOKENS)

    def flush(self) -> str:
        return self._take(is_forced=True)

    def _take(self, *, is_forced: bool) -> str:
        text = self._decode(self._window)
        certain = text if is_forced else text.rstrip(REPLACEMENT)
        new_text = certain[self._shown_length :]
        if not new_text:
            return ""
        self._held_tokens = 0
        if certain == text:
            # Everything is shown: the tokens before this one become the context of the next.
            self._window = self._window[self._read :]
            self._read = len(self._window)
            self._shown_length = len(self._decode(self._window))
        else:
            self._shown_length = len(certain)
        return new_text

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids) if token_ids else ""
