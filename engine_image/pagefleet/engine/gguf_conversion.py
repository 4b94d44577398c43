"""Convert a GGUF file once: transformers parses it entry by entry in Python, 10 to 30 seconds at every start."""

import shutil
import tempfile
from pathlib import Path

from pagefleet.engine.errors import StartupError
from pagefleet.engine.gguf_cache import cached_conversion, conversion_folder, is_convertible
from pagefleet.engine.model_source import ModelSource
from pagefleet.engine.weights import SINGLE_FILE, first_line, load_gguf_model


def convert(source: ModelSource) -> ModelSource:
    """Return the converted copy of a GGUF file, made now if need be; the source itself when none is kept.

    A cache that cannot be written only means the slow way. Raises StartupError when the file cannot be loaded.
    """
    cached = cached_conversion(source)
    if cached is not None or not is_convertible(source):
        return cached or source
    folder = conversion_folder(source)
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
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # what is written is plain float32
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    try:
        AutoTokenizer.from_pretrained(source.folder, gguf_file=source.gguf_file).save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # transformers raises whatever its readers do
        raise StartupError(f"the tokenizer of {source.path} cannot be read: {first_line(error)}") from error
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / SINGLE_FILE)
