"""The model's tokenizer and chat template: the one module of the API process that touches transformers."""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pagefleet.engine.errors import RequestRefused, StartupError
from pagefleet.engine.token_bytes import spelling_of

RESERVED_TEMPLATE_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of `apply_chat_template` that no request may set: `chat_template` would let it run its own program."""


class Tokenizer:
    """Encode, decode and render chats with one model's tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        flagged = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_token_ids = frozenset(flagged | set(tokenizer.all_special_ids))
        self._spelling = spelling_of(getattr(tokenizer, "backend_tokenizer", None))
        self._bytes_of_tokens: dict[int, bytes] = {}
        # The first call may switch off truncation that the file asks for, and that is the only call that writes.
        self.encode("warm-up", add_special_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        """Tell whether the model says how a chat becomes a prompt."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Turn text into token ids, with the model's begin token first if asked and the model has one.

        Raises RequestRefused for text that is no valid Unicode.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:  # a lone surrogate
            raise RequestRefused("the text holds half of a surrogate pair, which is no character") from error
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Turn token ids into text, special tokens included; ids beyond the tokenizer's own are empty text."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    @property
    def is_bytewise(self) -> bool:
        """Tell whether a text is nothing but the bytes of its tokens."""
        return self._spelling is not None

    @property
    def drops_first_space(self) -> bool:
        """Tell whether the first space of a text is no text."""
        return self._spelling is not None and self._spelling.drops_first_space

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text, special tokens as they are written; unknown ids have none."""
        known = self._bytes_of_tokens.get(token_id)
        if known is None:
            known = self._bytes_of_tokens[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        if self._spelling is None:
            return self.decode([token_id]).encode()
        token = self._tokenizer.backend_tokenizer.id_to_token(token_id)
        return b"" if token is None else self._spelling.to_bytes(token)

    def is_special(self, token_id: int) -> bool:
        """Tell whether a token is markup such as an end token."""
        return token_id in self._special_token_ids

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token as the vocabulary spells it."""
        return [token or "" for token in self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    def render_chat(
        self,
        messages: list[dict[str, str]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_arguments: dict[str, Any],
    ) -> str:
        """Render a chat with the model's template, or with `chat_template`; the text holds its special tokens already.

        Raises RequestRefused when there is no template or it refuses the messages.
        """
        if chat_template is None and not self.has_chat_template:
            raise RequestRefused(
                "this model has no chat template; send the finished prompt to /v1/completions instead",
                parameter="messages",
                code="no_chat_template",
            )
        if reserved := sorted(RESERVED_TEMPLATE_ARGUMENTS & template_arguments.keys()):
            raise RequestRefused(
                f"chat_template_kwargs cannot set {', '.join(reserved)}; it holds the template's own variables only",
                parameter="chat_template_kwargs",
                code="invalid_value",
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template=chat_template,
                **template_arguments,
            )
        except Exception as error:  # a template is a program, so whatever it raises is its answer to these messages
            whose, parameter = ("model", "messages") if chat_template is None else ("request", "chat_template")
            raise RequestRefused(
                f"the {whose}'s chat template refuses these messages: {error}",
                parameter=parameter,
                code="invalid_value",
            ) from error
        return text


def load_tokenizer(folder: Path, gguf_file: str | None, *, keep_torch_out: bool = False) -> Tokenizer:
    """Load the tokenizer of a model folder, or of a GGUF file in it.

    `keep_torch_out` spares this process PyTorch (3 seconds and 180 MB here) for good, except for GGUF files, whose
    reader needs it. Raises StartupError.
    """
    hide_torch = keep_torch_out and gguf_file is None and "transformers" not in sys.modules
    with _torch_hidden() if hide_torch else contextlib.nullcontext():
        from transformers import AutoTokenizer
    gguf = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True, **gguf))
    except Exception as error:  # transformers raises whatever its readers do
        reason = (str(error).splitlines() or [type(error).__name__])[0]  # the rest is advice for other programs
        raise StartupError(f"no tokenizer could be loaded from {folder / (gguf_file or '')}: {reason}") from error


@contextlib.contextmanager
def _torch_hidden() -> Iterator[None]:
    """Let transformers find no torch while it is imported, and spare the log its advice to install one."""
    if "torch" in sys.modules:
        yield
        return
    logger = logging.getLogger("transformers")
    sys.modules["torch"] = None  # type: ignore[assignment]  # what the import system itself reads as "absent"
    logger.addFilter(_reject)
    try:
        yield
    finally:
        logger.removeFilter(_reject)
        del sys.modules["torch"]


def _reject(_record: logging.LogRecord) -> bool:
    return False
