"""Where a model's files come from: the five URI forms, each with a message that says what to write."""

import re
from dataclasses import dataclass
from enum import StrEnum

from pagefleet.api.cel import Rule, pattern, text


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

# What follows the scheme. The API server judges with the same patterns, so they keep to what RE2 has too: no lookahead,
# and \v named, which its \s lacks.
_CHARACTER = r"[^\s\v?#]"
_PATH = rf"(?:/(?P<path>[^/\s\v?#]{_CHARACTER}*)?)?"
_PATTERNS: dict[ModelScheme, str] = {
    ModelScheme.HF: r"(?P<location>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>[\w./-]+))?",
    ModelScheme.PVC: rf"(?P<location>[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?){_PATH}",
    ModelScheme.OCI: r"(?P<location>[a-zA-Z0-9][a-zA-Z0-9.-]*(?:(?::[0-9]+)?(?:/[a-z0-9][a-z0-9._-]*)+)?"
    rf"(?::[\w][\w.-]{{0,127}}|@sha256:[0-9a-f]{{64}})?){_PATH}",
    ModelScheme.FILE: rf"(?P<location>/{_CHARACTER}+)",
    ModelScheme.PACKAGE: rf"(?P<location>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)/(?P<path>[^/\s\v?#]{_CHARACTER}*)",
}
_FORMS = {scheme: re.compile(form, re.ASCII) for scheme, form in _PATTERNS.items()}
_HUB_NAME = r"[\w.-]+/[\w.-]+"
_FORMS_TEXT = "; ".join(MODEL_URI_FORMS.values())
_SCHEMES_TEXT = ", ".join(f"{scheme}://" for scheme in ModelScheme)


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
        raise ValueError(f"{uri!r} has no scheme; write {_guess(uri) or f'one of {_FORMS_TEXT}'}")
    if scheme_text not in [scheme.value for scheme in ModelScheme]:
        raise ValueError(f"{uri!r} has the unknown scheme {scheme_text}://; write one of {_SCHEMES_TEXT}")
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
    return f"hf://{uri}" if re.fullmatch(_HUB_NAME, uri, re.ASCII) else None


def _uri_rules() -> tuple[Rule, ...]:
    """Write `parse_model_uri` in CEL: no scheme, unknown scheme, incomplete, and out of its folder."""
    known = f"self.matches(r'^({'|'.join(ModelScheme)})://')"
    forms = "|".join(f"{scheme}://{re.sub('[?]P<[a-z]+>', '?:', form)}" for scheme, form in _PATTERNS.items())
    complete = f"self.matches({pattern(forms)})"
    guess = f"self.startsWith('/') ? 'file://' + self : self.matches({pattern(_HUB_NAME)}) ? 'hf://' + self : " + text(
        f"one of {_FORMS_TEXT}"
    )
    scheme = "self.substring(0, self.indexOf('://'))"
    form = "".join(f"self.startsWith('{scheme}://') ? {text(words)} : " for scheme, words in MODEL_URI_FORMS.items())
    return (
        Rule("self.contains('://')", text("'%s' has no scheme; write %s", "self", guess)),
        Rule(
            f"!self.contains('://') || {known}",
            text(f"'%s' has the unknown scheme %s://; write one of {_SCHEMES_TEXT}", "self", scheme),
        ),
        Rule(
            f"!{known} || {complete}",
            text("'%s' is not a complete %s:// URI; write %s", "self", scheme, f"{form}''"),
        ),
        Rule(
            rf"!{known} || !self.matches(r'/[.][.](/|$)')",
            text("'%s' leaves its folder with '..'; write the path without it", "self"),
        ),
    )


URI_RULES = _uri_rules()
"""The same as `parse_model_uri`, for the API server."""
