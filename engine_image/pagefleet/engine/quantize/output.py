"""Write a quantized checkpoint, whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pagefleet.engine.errors import StartupError


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` at the end, and vanishes after an error; raises StartupError."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StartupError(f"-o {path} exists and is not an empty folder; name a new one, such as -o {path}-2")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    except OSError as error:
        raise StartupError(f"-o {path} cannot be written: {error.strerror}; name a folder that can be") from error
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp's are the owner's alone
        temporary.rename(path)
    except OSError as error:
        raise StartupError(f"-o {path} cannot be written: {error.strerror}; name a folder with room") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_checkpoint(
    folder: Path, model: Any, packed: Mapping[str, Mapping[str, torch.Tensor]], quantization_config: Mapping[str, Any]
) -> None:
    """Write weights and configuration: packed layers by name, all else of the model in its stored dtype."""
    from huggingface_hub import save_torch_state_dict

    dtype = model.config.dtype or torch.float32
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        layer = name.removesuffix(".weight")
        if layer in packed:
            tensors.update({f"{layer}.{suffix}": part for suffix, part in packed[layer].items()})
        elif not (name == "lm_head.weight" and model.config.tie_word_embeddings):
            tensors[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    save_torch_state_dict(tensors, folder, metadata={"format": "pt"})
    model.config.quantization_config = dict(quantization_config)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
