"""Whether the operator still owns every field that it applied: how hand-made edits are noticed without keeping objects.

The API server notes in `metadata.managedFields` who last decided each field. An edit takes the field away from our
entry, and so does a removal; a label that somebody adds changes another entry. So an object is as we applied it while
our entry covers our intent. Only the entry's text is kept, without the owner's uid: alike for all objects of a kind.
"""

import json
import sys
from functools import lru_cache
from typing import Any

from pagefleet.api.labels import OPERATOR_FIELD_MANAGER

JsonObject = dict[str, Any]
_SKIPPED = ("ownerReferences",)
"""Its key is the owner's uid, which would make each text unique; who owns an object is kept apart."""


def owned_fields(metadata: JsonObject) -> str:
    """Return the operator's entry in an object's `managedFields` as compact text; empty where there is none."""
    for entry in metadata.get("managedFields") or ():
        if (
            entry.get("manager") != OPERATOR_FIELD_MANAGER
            or entry.get("operation") != "Apply"
            or entry.get("subresource")
        ):
            continue
        fields = dict(entry.get("fieldsV1") or {})
        if isinstance(own := fields.get("f:metadata"), dict):
            fields["f:metadata"] = {key: value for key, value in own.items() if key.removeprefix("f:") not in _SKIPPED}
        return sys.intern(json.dumps(fields, sort_keys=True, separators=(",", ":")))
    return ""


def owns_all(owned: str, body: JsonObject) -> bool:
    """Tell whether the fields in `owned` (see `owned_fields`) cover every field of an applied body."""
    fields = _parsed(owned)
    return (
        fields is not None
        and all(
            _covers(fields.get(f"f:{key}"), value)
            for key, value in body.items()
            if key not in ("apiVersion", "kind", "metadata")
        )
        and _covers_metadata(fields.get("f:metadata"), body["metadata"])
    )


def _covers_metadata(fields: Any, metadata: JsonObject) -> bool:
    judged = {key: value for key, value in metadata.items() if key in ("labels", "annotations")}
    return fields is not None and all(_covers(fields.get(f"f:{key}"), value) for key, value in judged.items())


def _covers(fields: Any, value: Any) -> bool:
    if fields is None:
        return False
    if not fields:  # a leaf, or a map or list that is owned as one
        return True
    if isinstance(value, dict):
        return all(_covers(fields.get(f"f:{key}"), part) for key, part in value.items())
    if isinstance(value, list):
        return all(_covers_item(fields, item) for item in value)
    return True


def _covers_item(fields: JsonObject, item: Any) -> bool:
    """Find the entry of a list's item: `k:{…}` names its key fields, `v:…` a plain value."""
    for name, inner in fields.items():
        kind, _, text = name.partition(":")
        if kind == "v" and json.loads(text) == item:
            return True
        if kind == "k" and isinstance(item, dict):
            # A key field that the item leaves out was defaulted, such as a port's protocol.
            keys = json.loads(text)
            if all(item.get(key, wanted) == wanted for key, wanted in keys.items()):
                return _covers(inner, item)
    return False


@lru_cache(maxsize=256)
def _parsed(owned: str) -> JsonObject | None:
    parsed = json.loads(owned) if owned else None
    return parsed if isinstance(parsed, dict) else None
