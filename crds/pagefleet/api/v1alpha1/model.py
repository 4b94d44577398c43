"""The model that a service serves, and where its files come from."""

from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from pagefleet.api.base import ApiModel
from pagefleet.api.cel import Rule, Rules, pattern, section_rules, text
from pagefleet.api.v1alpha1.model_uri import URI_RULES, ModelScheme, ModelUri, parse_model_uri

_TOKEN_RULE = Rule(
    "!has(self.tokenSecret) || self.uri.startsWith('hf://')",
    text(
        "tokenSecret is only used with hf://, and uri is '%s'; remove tokenSecret%s",
        "self.uri",
        "self.uri.startsWith('oci://') ? ', or set imagePullSecrets in spec.template.spec' : ''",
    ),
)
_MODEL_NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
_MODEL_NAME_RULE = Rule(
    f"self.matches({pattern(_MODEL_NAME_PATTERN)})",
    text("%s has a form that is not allowed here; write a value such as chat", "self"),
)


def _checked_uri(uri: str) -> str:
    parse_model_uri(uri)
    return uri


class SecretKey(ApiModel):
    """One entry of a Secret in the service's namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "token"
    """Key in the Secret's data."""


class ModelReference(ApiModel):
    """Where the files of a model come from."""

    model_config = ConfigDict(json_schema_extra=section_rules(_TOKEN_RULE))

    uri: Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_checked_uri), Rules(URI_RULES)]
    """Where the files are: hf://organisation/model[@revision], pvc://claim/path, oci://registry/image:tag[/path],
    file:///absolute/path (on the node), or package://module/file (inside the engine image)."""
    token_secret: SecretKey | None = None
    """Secret that holds the access token of a gated or private model. For hf:// only."""

    @property
    def source(self) -> ModelUri:
        """The URI taken apart."""
        return parse_model_uri(self.uri)

    @model_validator(mode="after")
    def _token_has_a_use(self) -> Self:
        if self.token_secret and self.source.scheme is not ModelScheme.HF:
            raise ValueError(
                f"tokenSecret is only used with hf://, and uri is {self.uri!r}; remove tokenSecret"
                + (", or set imagePullSecrets in spec.template.spec" if self.source.scheme is ModelScheme.OCI else "")
            )
        return self


class ModelSource(ModelReference):
    """The model that a service serves."""

    name: Annotated[str, Field(max_length=253, pattern=_MODEL_NAME_PATTERN), Rules((_MODEL_NAME_RULE,))] | None = None
    """Name that clients put in a request's `model` field. Default: the service's own name."""
