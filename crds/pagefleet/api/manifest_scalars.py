"""YAML's bare words and numbers as Kubernetes reads them, which is neither PyYAML's way nor YAML 1.2's.

Kubernetes' reader takes `1e3`, `0o10` and `y`, which are text to PyYAML, and leaves `1:30` as text, which is 90 to
PyYAML. A number without a fraction is a whole number, however it is written, because it travels as JSON.
"""

import math
import re
from typing import Final

import yaml

TAG: Final = "tag:yaml.org,2002:"

_BOOL = re.compile("^(?:y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON|n|N|no|No|NO|false|False|FALSE|off|Off|OFF)$")
_INT = re.compile("^[-+]?(?:0[bB][01_]+|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_BASES = {"0b": 2, "0o": 8, "0x": 16}


class Loader(yaml.SafeLoader):
    """Composes nodes whose tags are those that Kubernetes' reader would give."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag.removeprefix(TAG) not in ("bool", "int", "float")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# In this order: the first form that matches names the tag, and every whole number is a float's form too.
Loader.add_implicit_resolver(f"{TAG}bool", _BOOL, list("yYnNtTfFoO"))
Loader.add_implicit_resolver(f"{TAG}int", _INT, list("-+0123456789"))
Loader.add_implicit_resolver(f"{TAG}float", _FLOAT, list("-+.0123456789"))


def read_bool(text: str) -> bool:
    """Return the truth of a word. Raises ValueError for a word that is none, which only an explicit tag leads here."""
    if not _BOOL.match(text):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in ("y", "yes", "true", "on")


def read_int(text: str) -> int:
    """Return a whole number in any of the four bases. Raises ValueError."""
    plain = text.replace("_", "").lower()
    digits = plain.lstrip("+-")
    if not re.match("^[-+]?[0-9]", plain):
        raise ValueError(f"{text!r} is not a whole number")
    base = _BASES.get(digits[:2], 8 if digits.startswith("0") else 10)
    number = int(digits, base)
    return -number if plain.startswith("-") else number


def read_float(text: str) -> float | int:
    """Return a number, whole where it has no fraction and fits 64 bits. Raises ValueError for the infinite ones."""
    number = float(text.replace("_", ""))  # of `.inf` it makes nothing
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is without an end")
    return int(number) if number.is_integer() and abs(number) < 2**63 else number
