"""The headers of a folder's safetensors files: some kilobytes at the front of each, never a weight."""

import json
import struct
from pathlib import Path
from typing import Any

from pagefleet.cli.errors import UserMistake

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MOST_HEADER_BYTES = 100 * 10**6
"""The format's own limit: a larger length is another file's first bytes."""


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
        weight_map = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise UserMistake(f"file {folder / INDEX_FILE} has no weight_map: download it again")
        return sorted({str(name) for name in weight_map.values()})
    if (folder / SINGLE_FILE).is_file():
        return [SINGLE_FILE]
    raise UserMistake(
        f"folder {folder} holds no {SINGLE_FILE} and no {INDEX_FILE}, so the size of the weights is unknown: "
        "give a folder with both config.json and safetensors files"
    )


def _read_header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            front = stream.read(8)
            length = struct.unpack("<Q", front)[0] if len(front) == 8 else MOST_HEADER_BYTES + 1
            content = stream.read(length) if length <= MOST_HEADER_BYTES else b""
        file_bytes = path.stat().st_size
    except OSError as error:
        raise UserMistake(f"file {path} cannot be read: {error.strerror or error}") from None
    try:
        header = json.loads(content)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        whole_bytes = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise UserMistake(f"file {path} has no safetensors header: download it again") from None
    if file_bytes < whole_bytes:
        raise UserMistake(f"file {path} has {file_bytes} of its {whole_bytes} bytes: download it again")
    return dict(header)
