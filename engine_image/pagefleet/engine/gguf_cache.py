"""Find the converted copy of a GGUF file, which loads in a second where the original takes up to half a minute.

The copy (config, tokenizer, float32 safetensors) is named by the file's sha256 and stays in the cache folder,
`$PAGEFLEET_CACHE` or `~/.cache/pagefleet`. The core makes it (`gguf_conversion`); the API process only looks for it,
and so stays free of torch.
"""

import hashlib
import os
from pathlib import Path

from pagefleet.engine.model_source import ModelSource

LARGEST_FILE_BYTES = 1024**3
"""A gibibyte of 4-bit weights becomes 7 in float32; beyond that the disk is worth more than the seconds."""

FORMAT = "1"
"""Part of the folder's name: raise it when what a conversion writes changes."""


def is_convertible(source: ModelSource) -> bool:
    """Tell whether a copy is kept: the model is a GGUF file that is not too large."""
    return source.gguf_file is not None and source.path.stat().st_size <= LARGEST_FILE_BYTES


def cached_conversion(source: ModelSource) -> ModelSource | None:
    """Return the copy of a GGUF file if there is one."""
    if not is_convertible(source):
        return None
    folder = conversion_folder(source)
    return ModelSource(folder, is_quantized=True) if (folder / "config.json").is_file() else None


def conversion_folder(source: ModelSource) -> Path:
    """Return where the copy of a GGUF file belongs."""
    with source.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    base = Path(os.environ.get("PAGEFLEET_CACHE") or Path.home() / ".cache" / "pagefleet")
    return base / "models" / f"gguf-{digest}-{FORMAT}"
