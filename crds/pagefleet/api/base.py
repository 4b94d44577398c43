"""The base of every type in a custom resource, and the scalar types they share."""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    model_validator,
)
from pydantic.alias_generators import to_camel

# Strict, because the API server is: `blockSize: "32"` and `prefixCaching: 1` must fail here as they fail there.
MOST_INT32 = 2**31 - 1
Integer = Annotated[int, Strict()]
PositiveInteger = Annotated[int, Strict(), Field(ge=1, le=MOST_INT32)]
"""A count from 1; products of two stay in CEL's 64 bits."""
NonNegativeInteger = Annotated[int, Strict(), Field(ge=0)]
"""A count or a number of bytes."""
ReplicaCount = Annotated[int, Strict(), Field(ge=0, le=MOST_INT32)]
"""Replicas; the scale subresource has 32 bits for them."""
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Fraction = Annotated[float, Strict(), Field(gt=0, le=1, allow_inf_nan=False)]
"""A share above 0 and up to 1."""
Kl = Annotated[float, Strict(), Field(ge=0, le=1000, allow_inf_nan=False)]
"""A KL divergence in nats."""
Boolean = Annotated[bool, Strict()]
JsonObject = dict[str, Any]
"""A part of a Kubernetes object that only the API server judges."""


def _whole_utc_seconds(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(microsecond=0)


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


Timestamp = Annotated[
    AwareDatetime, AfterValidator(_whole_utc_seconds), PlainSerializer(_rfc3339, return_type=str, when_used="json")
]
"""A moment in UTC in whole seconds, as Kubernetes stores it (`metav1.Time`): fractions would be lost on the way."""


class ApiModel(BaseModel):
    """A frozen part of a resource: camelCase in YAML, snake_case in Python, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,  # a field's docstring is its description, and `kubectl explain` prints it
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        """Read a known key without a value as a key left out, as the API server does where there is a default.

        A section whose lines are all commented out is the usual case.
        """
        if not isinstance(data, dict):
            return data
        known = {name for field, info in cls.model_fields.items() for name in (field, info.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    def to_manifest(self) -> dict[str, Any]:
        """Return the camelCase JSON form that Kubernetes stores; what is unset is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_manifest(cls, data: dict[str, Any], *, context: dict[str, Any] | None = None) -> Self:
        """Read the camelCase form, not Python's names; validators get `context`. Raises `pydantic.ValidationError`."""
        return cls.model_validate(data, by_alias=True, by_name=False, context=context)


class StatusModel(ApiModel):
    """A part of `status`: unknown fields are ignored, so that an older operator reads what a newer one wrote."""

    model_config = ConfigDict(extra="ignore")
