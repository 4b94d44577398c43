"""The text that quantization is calibrated on, in windows of tokens."""

from pathlib import Path
from typing import Any

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.weights import first_line


def read_windows(path: Path, tokenizer: Any, *, samples: int, window_tokens: int, vocabulary_size: int) -> torch.Tensor:
    """Return [samples, window_tokens] token ids, spread evenly over a text; raises StartupError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartupError(f"--calibration {path} cannot be read: {error.strerror}; name a text file") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"--calibration {path} is not UTF-8: {first_line(error)}; name a text file") from error
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    needed = samples * window_tokens
    if len(ids) < needed:
        raise StartupError(
            f"--calibration {path} has {len(ids)} tokens, and {samples} samples of {window_tokens} need {needed}: "
            f"give a longer text, or --samples {max(1, len(ids) // window_tokens)}"
        )
    if int(ids.max()) >= vocabulary_size:
        raise StartupError(
            f"the tokenizer makes token {int(ids.max())}, but the model has only {vocabulary_size}: give a folder "
            "whose tokenizer belongs to the model"
        )
    starts = torch.linspace(0, len(ids) - window_tokens, samples).long()
    return torch.stack([ids[start : start + window_tokens] for start in starts])
