"""Kubernetes' own object metadata, as far as a service carries it."""

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from pagefleet.api.base import ApiModel, JsonObject, NonNegativeInteger, Timestamp
from pagefleet.api.cel import Rule, pattern, text

_DNS_LABEL_PATTERN = "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_LABEL = re.compile(_DNS_LABEL_PATTERN)

# Only at the root of an object does CEL see its name. Capitals and underscores never come so far: no object has them.
_LIKELY_NAME = "self.metadata.name.find('[a-z].*').replace('.', '-')"
NAME_RULES = (
    Rule(
        "self.metadata.name.size() <= 63",
        text(
            "'%s'... has %d characters, and it also names a Service; write 63 or fewer",
            "self.metadata.name.substring(0, 40)",
            "self.metadata.name.size()",
        ),
        field=".metadata.name",
    ),
    Rule(
        f"self.metadata.name.size() > 63 || self.metadata.name.matches({pattern(_DNS_LABEL_PATTERN)})",
        text(
            "'%s' cannot name a Service; write a-z, 0-9 and - with a letter first, such as %s",
            "self.metadata.name",
            f"{_LIKELY_NAME} == '' ? 'chat' : {_LIKELY_NAME}",
        ),
        field=".metadata.name",
    ),
)
"""The same as `_checked_name`, for the API server."""


def _checked_name(name: str) -> str:
    """Refuse what cannot name a Kubernetes Service (RFC 1035 label), with a name that can."""
    if _DNS_LABEL.fullmatch(name):
        return name
    if len(name) > 63:
        raise ValueError(f"{name[:40]!r}... has {len(name)} characters, and it also names a Service; write 63 or fewer")
    likely = re.sub("[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789").rstrip("-") or "chat"
    raise ValueError(f"{name!r} cannot name a Service; write a-z, 0-9 and - with a letter first, such as {likely}")


MOST_ANNOTATION_BYTES = 256 * 1024
"""Of all keys and values together; the API server's own limit."""

_WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:(?=[^/]{{1,253}}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?({_WORD})")
_LABEL_VALUE = re.compile(f"({_WORD})?")


def _checked_keys(kind: str, keys: Iterable[str]) -> None:
    for key in keys:
        if not _KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            raise ValueError(
                f"{key[:80]!r} cannot be the key of {kind}; write letters, digits and - _ . such as team or "
                "example.com/team, 63 or fewer after the /"
            )


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    _checked_keys("a label", labels)
    for key, value in labels.items():
        if not _LABEL_VALUE.fullmatch(value) or len(value) > 63:
            raise ValueError(
                f"{value[:80]!r} cannot be the value of the label {key}; write 63 or fewer letters, digits and - _ . "
                "such as a-b, or make it an annotation"
            )
    return labels


def _checked_annotations(annotations: dict[str, str]) -> dict[str, str]:
    _checked_keys("an annotation", (key.lower() for key in annotations))
    size = sum(len(text.encode()) for item in annotations.items() for text in item)
    if size > MOST_ANNOTATION_BYTES:
        raise ValueError(f"annotations have {size} bytes in all; write {MOST_ANNOTATION_BYTES} or fewer")
    return annotations


def _checked_namespace(namespace: str) -> str:
    if not re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", namespace):
        raise ValueError(f"{namespace!r} cannot name a namespace; write a-z, 0-9 and -, such as default")
    return namespace


class ObjectMeta(ApiModel):
    """Name, labels and annotations, which users write; the rest is what the API server adds."""

    name: Annotated[str, AfterValidator(_checked_name)]
    """Name of the service and of its Kubernetes Service: a-z, 0-9 and -, a letter first, 63 characters at most."""
    namespace: Annotated[str, Field(min_length=1, max_length=63), AfterValidator(_checked_namespace)] = "default"
    """Namespace of the service and of all that belongs to it."""
    labels: Annotated[dict[str, str], AfterValidator(_checked_labels)] = Field(default_factory=dict)
    """Labels of the service."""
    annotations: Annotated[dict[str, str], AfterValidator(_checked_annotations)] = Field(default_factory=dict)
    """Annotations of the service."""

    uid: str | None = None
    """Identity of this one object; a re-created namesake has another."""
    resource_version: str | None = None
    """Opaque version of the stored object."""
    generation: NonNegativeInteger | None = None
    """Counts changes of `spec`."""
    creation_timestamp: Timestamp | None = None
    """When the object was created."""
    deletion_timestamp: Timestamp | None = None
    """When deletion was asked for; null while the object stays."""
    deletion_grace_period_seconds: NonNegativeInteger | None = None
    """Seconds until deletion may be forced."""
    finalizers: tuple[str, ...] = ()
    """Who must agree before the object vanishes."""
    owner_references: tuple[JsonObject, ...] = ()
    """Objects whose deletion deletes this one."""
    managed_fields: tuple[JsonObject, ...] = ()
    """Which field manager owns which field."""
    generate_name: str | None = None
    """Prefix from which the API server once made the name."""
    self_link: str | None = None
    """Legacy path of the object."""
