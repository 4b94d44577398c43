"""Find the converted copy of a GGUF file, which loads in a second where the original takes up to half a minute.

The copy (config, tokenizer, float32 safetensors) is named by the file's sha256 and stays in the cache folder,
`$PAGEFLEET_CACHE` or `~/.cache/pagefleet`. The core makes it (`gguf_conversion`); the API process only looks for it,
and so stays free of torch. An image or a volume may bring the copy beside the file itself: that one is taken first.
"""

import hashlib
import os
from pathlib import Path

from pagefleet.engine.model_source import ModelSource

LARGEST_FILE_BYTES = 1024**3
"""A gibibyte of 4-bit weights becomes 7 in float32; beyond that the disk is worth more than the seconds."""

FORMAT = "1"
"""Part of the folder's name: raise it when what a conversion writes changes."""


def cache_folder() -> Path:
    """Return the folder of everything that is made once and kept."""
    return Path(os.environ.get("PAGEFLEET_CACHE") or Path.home() / ".cache" / "pagefleet")


def is_convertible(source: ModelSource) -> bool:
    """Tell whether a copy is kept: the model is a GGUF file that is not too large."""
    return source.gguf_file is not None and source.path.stat().st_size <= LARGEST_FILE_BYTES


def cached_conversion(source: ModelSource) -> ModelSource | None:
    """Return the copy of a GGUF file if there is one."""
    if not is_convertible(source):
        return None
    folder = conversion_folder(source)
    for candidate in (source.folder / folder.name, folder):
        if (candidate / "config.json").is_file():
            return ModelSource(candidate, is_quantized=True)
    return None


def conversion_folder(source: ModelSource) -> Path:
    """Return where the copy of a GGUF file belongs when it is made here."""
    with source.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return cache_folder() / "models" / f"gguf-{digest}-{FORMAT}"
