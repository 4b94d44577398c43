"""Where a model's files come from: the five URI forms, each with a message that says what to write."""

import re
from dataclasses import dataclass
from enum import StrEnum


class ModelScheme(StrEnum):
    """Kind of place that holds a model's files."""

    HF = "hf"
    PVC = "pvc"
    OCI = "oci"
    FILE = "file"
    PACKAGE = "package"


MODEL_URI_FORMS: dict[ModelScheme, str] = {
    ModelScheme.HF: "hf://organisation/model, or hf://organisation/model@revision",
    ModelScheme.PVC: "pvc://claim/path",
    ModelScheme.OCI: "oci://registry/image:tag, or oci://registry/image:tag/path",
    ModelScheme.FILE: "file:///absolute/path",
    ModelScheme.PACKAGE: "package://module/file",
}

_PATH = r"(?:/(?P<path>[^/\s?#][^\s?#]*)?)?"
_FORMS: dict[ModelScheme, re.Pattern[str]] = {
    ModelScheme.HF: re.compile(
        r"(?P<location>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>[\w./-]+))?", re.ASCII
    ),
    ModelScheme.PVC: re.compile(rf"(?P<location>[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?){_PATH}"),
    ModelScheme.OCI: re.compile(
        r"(?P<location>[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]+(?=/))?(?:/[a-z0-9][a-z0-9._-]*)*"
        rf"(?::[\w][\w.-]{{0,127}}|@sha256:[0-9a-f]{{64}})?){_PATH}",
        re.ASCII,
    ),
    ModelScheme.FILE: re.compile(r"(?P<location>/[^\s?#]+)"),
    ModelScheme.PACKAGE: re.compile(
        r"(?P<location>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)/(?P<path>[^/\s?#][^\s?#]*)", re.ASCII
    ),
}


@dataclass(frozen=True)
class ModelUri:
    """A model URI taken apart."""

    scheme: ModelScheme
    location: str
    """Hub repository, claim name, image reference, absolute path or Python module, after the scheme."""
    path: str = ""
    """Path inside the claim, image or module; empty for all of it."""
    revision: str | None = None
    """Branch, tag or commit of a hub repository."""


def parse_model_uri(uri: str) -> ModelUri:
    """Take a model URI apart. Raises ValueError that names the wrong value and the form to write."""
    scheme_text, separator, rest = uri.partition("://")
    if not separator:
        forms = "; ".join(MODEL_URI_FORMS.values())
        raise ValueError(f"{uri!r} has no scheme; write {_guess(uri) or f'one of {forms}'}")
    if scheme_text not in [scheme.value for scheme in ModelScheme]:
        schemes = ", ".join(f"{scheme}://" for scheme in ModelScheme)
        raise ValueError(f"{uri!r} has the unknown scheme {scheme_text}://; write one of {schemes}")
    scheme = ModelScheme(scheme_text)
    match = _FORMS[scheme].fullmatch(rest)
    if match is None:
        raise ValueError(f"{uri!r} is not a complete {scheme}:// URI; write {MODEL_URI_FORMS[scheme]}")
    if ".." in rest.split("/"):
        raise ValueError(f"{uri!r} leaves its folder with '..'; write the path without it")
    parts = match.groupdict()
    return ModelUri(scheme, parts["location"], parts.get("path") or "", parts.get("revision"))


def _guess(uri: str) -> str | None:
    """Return the URI that a value without a scheme most likely means."""
    if uri.startswith("/"):
        return f"file://{uri}"
    return f"hf://{uri}" if re.fullmatch(r"[\w.-]+/[\w.-]+", uri, re.ASCII) else None
