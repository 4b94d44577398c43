"""Kubernetes' own object metadata, as far as a service carries it."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from pagefleet.api.base import ApiModel, JsonObject, NonNegativeInteger, Timestamp

_DNS_LABEL = re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def _checked_name(name: str) -> str:
    """Refuse what cannot name a Kubernetes Service (RFC 1035 label), with a name that can."""
    if _DNS_LABEL.fullmatch(name):
        return name
    if len(name) > 63:
        raise ValueError(f"{name[:40]!r}... has {len(name)} characters, and it also names a Service; write 63 or fewer")
    likely = re.sub("[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789").rstrip("-") or "chat"
    raise ValueError(f"{name!r} cannot name a Service; write a-z, 0-9 and - with a letter first, such as {likely}")


class ObjectMeta(ApiModel):
    """Name, labels and annotations, which users write; the rest is what the API server adds."""

    name: Annotated[str, AfterValidator(_checked_name)]
    """Name of the service and of its Kubernetes Service: a-z, 0-9 and -, a letter first, 63 characters at most."""
    namespace: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    """Namespace of the service and of all that belongs to it."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the service."""
    annotations: dict[str, str] = Field(default_factory=dict)
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
