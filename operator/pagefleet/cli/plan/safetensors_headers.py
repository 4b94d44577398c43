"""The headers of a folder's safetensors files: some kilobytes at the front of each, never a weight."""

import json
from pathlib import Path
from typing import Any

from pagefleet.capacity.safetensors_header import (
    INDEX_FILE,
    LENGTH_BYTES,
    SINGLE_FILE,
    files_of_index,
    header_length,
    read_header,
    tensors_end,
)
from pagefleet.cli.errors import UserMistake


def read_headers(folder: Path) -> list[dict[str, Any]]:
    """Return the header of each safetensors file of a model; raises UserMistake."""
    return [_read_header(folder / name) for name in _files(folder)]


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises UserMistake."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserMistake(f"file {path} is missing: give the whole folder of a model") from None
    except (OSError, ValueError) as error:
        raise UserMistake(f"file {path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserMistake(f"file {path} holds no JSON object: give the model's original file")
    return value


def _files(folder: Path) -> list[str]:
    if (folder / INDEX_FILE).is_file():
        try:
            return files_of_index(read_json(folder / INDEX_FILE))
        except ValueError:
            raise UserMistake(f"file {folder / INDEX_FILE} has no weight_map: download it again") from None
    if (folder / SINGLE_FILE).is_file():
        return [SINGLE_FILE]
    raise UserMistake(
        f"folder {folder} holds no {SINGLE_FILE} and no {INDEX_FILE}, so the size of the weights is unknown: "
        "give a folder with both config.json and safetensors files"
    )


def _read_header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            length = header_length(stream.read(LENGTH_BYTES))
            header = read_header(stream.read(length))
        file_bytes = path.stat().st_size
    except OSError as error:
        raise UserMistake(f"file {path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UserMistake(f"file {path} has no safetensors header: download it again") from None
    whole_bytes = LENGTH_BYTES + length + tensors_end(header)
    if file_bytes < whole_bytes:
        raise UserMistake(f"file {path} has {file_bytes} of its {whole_bytes} bytes: download it again")
    return header
