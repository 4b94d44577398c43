"""The text that quality is measured on, in windows of tokens."""

from collections.abc import Sequence
from pathlib import Path

from pagefleet.engine.errors import StartupError

SHIPPED_TEXT = Path(__file__).with_name("quality_text.txt")
"""A public-domain passage and a little code; quality_text_source.txt says whose."""

LEAST_TOKENS = 64
"""Fewer say nothing about a model: each of 64 positions is 1.6 % of the agreement."""


def read_text(path: Path | None) -> str:
    """Return the text of a file, or the shipped one; raises StartupError."""
    path = path or SHIPPED_TEXT
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartupError(f"--text {path} cannot be read: {error.strerror}; name a text file") from error
    except UnicodeDecodeError as error:
        raise StartupError(
            f"--text {path} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}; name a text file"
        ) from error


def windows_of(token_ids: Sequence[int], window_tokens: int, begin: Sequence[int]) -> list[list[int]]:
    """Cut a text into windows of that many tokens, each behind the model's begin tokens.

    A rest shorter than half a window is left out, unless it is all there is. Raises StartupError for a short text.
    """
    if len(token_ids) < LEAST_TOKENS:
        raise StartupError(f"--text has {len(token_ids)} tokens, too few to judge by: give {LEAST_TOKENS} or more")
    starts = range(0, len(token_ids), window_tokens)
    windows = [[*begin, *token_ids[start : start + window_tokens]] for start in starts]
    if len(windows) > 1 and len(windows[-1]) - len(begin) < window_tokens / 2:
        windows.pop()
    return windows
