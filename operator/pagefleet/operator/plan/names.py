"""Names of the objects that belong to a service: always the same, never longer than Kubernetes takes."""

import hashlib

LONGEST_LABEL = 63
"""Most characters of a label's value, a Service's name, a host name."""
LONGEST_PARENT = 57
"""Most characters of a ReplicaSet's name: its pods add a dash and five characters, and are host names too."""


def digest(text: str, length: int = 10) -> str:
    """Return the first hexadecimal digits of a text's sha256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def derived_name(base: str, suffix: str, longest: int = LONGEST_LABEL) -> str:
    """Return `base-suffix`; where that is too long, `base` is cut and a digest of the whole keeps it unique."""
    name = f"{base}-{suffix}"
    if len(name) <= longest:
        return name
    mark = digest(base, 8)
    room = longest - len(suffix) - len(mark) - 2
    return f"{base[:room].rstrip('-.')}-{mark}-{suffix}"


def revision_name(service: str, revision: str) -> str:
    """Return the name of a revision's ReplicaSet and ControllerRevision."""
    return derived_name(service, revision, LONGEST_PARENT)


def account_name(service: str) -> str:
    """Return the name of the service account of a service's pods."""
    return derived_name(service, "engine")
