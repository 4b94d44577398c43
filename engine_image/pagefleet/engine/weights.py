"""Read weights by name: safetensors (one file or sharded) and GGUF."""

import json
from pathlib import Path
from typing import Any, Protocol

import torch

from pagefleet.engine.errors import StartupError
from pagefleet.engine.model_source import ModelSource

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


class Checkpoint(Protocol):
    """Give tensors by transformers' names."""

    def __contains__(self, name: object) -> bool:
        """Tell whether the checkpoint has the weight."""

    def tensor(self, name: str) -> torch.Tensor:
        """Return the weight on the CPU in the stored dtype; raises StartupError when it is not there."""


class SafetensorsCheckpoint:
    """Read a folder of safetensors files, mapped into memory, so that nothing is held twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        if (folder / INDEX_FILE).is_file():
            index = read_json(folder / INDEX_FILE)
            self._file_of: dict[str, str] = dict(index.get("weight_map", {}))
        elif (folder / SINGLE_FILE).is_file():
            self._file_of = dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)
        else:
            pickled = sorted(folder.glob("*.bin"))
            advice = "convert its .bin files to safetensors" if pickled else "is the download complete?"
            raise StartupError(f"folder {folder} holds no {SINGLE_FILE} and no {INDEX_FILE}: {advice}")

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> torch.Tensor:
        """Return one weight."""
        file = self._file_of.get(name)
        if file is None:
            raise StartupError(f"weight {name} is missing in {self._folder}: the files do not fit config.json")
        try:
            tensor: torch.Tensor = self._open(file).get_tensor(name)
        except StartupError:
            raise
        except Exception as error:  # safetensors raises its own type, which is no subclass of OSError or ValueError
            raise StartupError(f"file {self._folder / file} is corrupt at weight {name}: {error}") from error
        return tensor

    def _open(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._files:
            path = self._folder / file
            try:
                self._files[file] = safe_open(path, framework="pt")
            except FileNotFoundError as error:
                raise StartupError(f"file {path} is missing: is the download complete?") from error
            except (SafetensorError, OSError) as error:
                raise StartupError(f"file {path} is corrupt or incomplete: {error}") from error
        return self._files[file]


class StateDictCheckpoint:
    """Hold weights that a transformers loader made."""

    def __init__(self, tensors: dict[str, torch.Tensor], path: Path) -> None:
        self._tensors = tensors
        self._path = path

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> torch.Tensor:
        """Return one weight and let go of it, so that the two copies never stand side by side."""
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise StartupError(f"weight {name} is missing in {self._path}")
        return tensor


def load_config(source: ModelSource) -> Any:
    """Return transformers' configuration of the model; raises StartupError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source.folder, gguf_file=source.gguf_file, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever its parsers do
        raise StartupError(f"the configuration of {source.path} cannot be read: {first_line(error)}") from error


def load_gguf_model(source: ModelSource) -> Any:
    """Return transformers' model of a GGUF file, dequantized to float32; raises StartupError."""
    from transformers import AutoModelForCausalLM

    config = load_config(source)  # given to the loader, which would parse the file once more for it
    try:
        return AutoModelForCausalLM.from_pretrained(
            source.folder, gguf_file=source.gguf_file, config=config, dtype=torch.float32
        )
    except Exception as error:  # the GGUF reader raises ValueError, struct.error, IndexError, ...
        raise StartupError(f"file {source.path} cannot be loaded as GGUF: {first_line(error)}") from error


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """Open the model's weights; raises StartupError."""
    if source.gguf_file is None:
        return SafetensorsCheckpoint(source.folder)
    return StateDictCheckpoint(dict(load_gguf_model(source).state_dict()), source.path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises StartupError."""
    try:
        data = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise StartupError(f"file {path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise StartupError(f"file {path} holds no JSON object")
    return data


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type when it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
