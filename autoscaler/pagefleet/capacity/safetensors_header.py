"""The front of a safetensors file: eight bytes of length, then a JSON object that describes each tensor."""

import json
import struct
from collections.abc import Mapping
from typing import Any

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100 * 10**6
"""The format's own limit: a larger length is another file's first bytes."""


def header_length(front: bytes) -> int:
    """Return the bytes of the header that follows a file's first eight; raises ValueError where it has none."""
    if len(front) < LENGTH_BYTES:
        raise ValueError("the file is shorter than a header's length")
    length = int(struct.unpack_from("<Q", front)[0])
    if length > MOST_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes is longer than the format allows")
    return length


def read_header(content: bytes) -> dict[str, Any]:
    """Return a header as the format spells it; raises ValueError where it is not one."""
    header = json.loads(content)
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    tensors_end(header)
    return header


def tensors_end(header: Mapping[str, Any]) -> int:
    """Return the bytes that a header's tensors take after it; raises ValueError."""
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError("a tensor of the header has no data_offsets") from error
    return max(ends, default=0)


def files_of_index(index: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that an index spreads a model over; raises ValueError."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError("the index has no weight_map")
    return sorted({str(name) for name in weight_map.values()})
