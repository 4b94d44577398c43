"""Convert a GGUF file once: transformers' reader parses it entry by entry in Python, 10 to 30 seconds at every start.

The converted folder (config, tokenizer, float32 safetensors) is named by the file's sha256 and stays in the cache
folder, `$PAGEFLEET_CACHE` or `~/.cache/pagefleet`. A cache that cannot be written, or a file too large to keep a second
copy of, only means the slow way.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.weights import SINGLE_FILE, load_gguf_model

LARGEST_FILE_BYTES = 1024**3
"""A gibibyte of 4-bit weights becomes 7 in float32; beyond that the disk is worth more than the seconds."""

FORMAT = "1"
"""Part of the folder's name: raise it when what a conversion writes changes."""


def cached_conversion(source: ModelSource) -> ModelSource | None:
    """Return the converted folder of a GGUF file if there is one."""
    if source.gguf_file is None or source.path.stat().st_size > LARGEST_FILE_BYTES:
        return None
    folder = _folder_of(source.path)
    return ModelSource(folder, is_quantized=True) if (folder / "config.json").is_file() else None


def convert(source: ModelSource) -> ModelSource:
    """Return the converted folder of a GGUF file, converting it now; the source itself when that cannot be kept.

    Raises StartupError when the file cannot be loaded.
    """
    cached = cached_conversion(source)
    if cached is not None or source.gguf_file is None or source.path.stat().st_size > LARGEST_FILE_BYTES:
        return cached or source
    folder = _folder_of(source.path)
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".converting-"))
        _write_conversion(source, temporary)
        temporary.rename(folder)  # whole or not at all, also when two engines convert at once
    except OSError:
        return cached_conversion(source) or source
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return ModelSource(folder, is_quantized=True)


def _write_conversion(source: ModelSource, folder: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    model = load_gguf_model(source)
    del model.config.quantization_config  # what is written is plain float32
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.folder, gguf_file=source.gguf_file).save_pretrained(folder)
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / SINGLE_FILE)


def _folder_of(path: Path) -> Path:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    base = Path(os.environ.get("PAGEFLEET_CACHE") or Path.home() / ".cache" / "pagefleet")
    return base / "models" / f"gguf-{digest}-{FORMAT}"
