"""The two judges of a manifest: the API server, and the reader of `pagefleet play`."""

import json
from dataclasses import dataclass
from typing import Any, cast

from pagefleet.api.client_connection import Connection, Request
from pagefleet.api.client_errors import ApiError
from pagefleet.api.manifest import load_manifests
from pagefleet.api.resources import INFERENCE_SERVICES

NAMESPACE = "default"
NAME = "chat"


def manifest(spec: str = "", *, uri: str = "hf://a/b", name: str = NAME, namespace: str = NAMESPACE) -> str:
    """Write a manifest whose spec has these YAML lines (indented by two) beside the model."""
    return (
        f"apiVersion: {INFERENCE_SERVICES.api_version}\nkind: {INFERENCE_SERVICES.kind}\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n"
        + ("" if spec.startswith("  model:") else f"  model: {{uri: {json.dumps(uri)}}}\n")
        + f"{spec}\n"
    )


@dataclass(frozen=True)
class ServerVerdict:
    """What the API server said."""

    is_accepted: bool
    message: str = ""

    def names(self, field: str, sentence: str) -> bool:
        """Tell whether one of its mistakes is of this field and ends with exactly this sentence."""
        before, found, after = self.message.partition(sentence)
        # After it comes nothing, the end of a list, or the next mistake of one.
        return bool(found) and (not after or after[0] in ",]") and f"{field}: " in before


async def ask_server(connection: Connection, text: str) -> ServerVerdict:
    """Send the text itself, as strictly as kubectl does and without keeping the object."""
    request = Request(
        "POST",
        INFERENCE_SERVICES.path(NAMESPACE),
        {"dryRun": "All", "fieldValidation": "Strict"},
        cast("dict[str, Any]", text),
        content_type="application/yaml",
    )
    try:
        await connection.answer(request)
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        return ServerVerdict(False, error.message)
    return ServerVerdict(True)


def ask_reader(text: str) -> list[str]:
    """Return the reader's mistakes as `field: sentence`."""
    found = load_manifests(text, "m.yaml")
    assert found.services or found.errors
    return [f"{error.field}: {error.message}" for error in found.errors]
