"""The user's `spec.template` laid over the rendered pod template, by Kubernetes' strategic-merge rules.

Maps merge key by key; null removes a key. Lists whose items have a key merge item by item, and new items follow the old
ones; every other list is replaced:

containers, initContainers, ephemeralContainers, volumes, env, imagePullSecrets,
  resourceClaims, schedulingGates                                                   by `name`
volumeMounts, volumeDevices                                                         by `mountPath`, `devicePath`
ports (of a container)                                                              by `containerPort`
hostAliases                                                                         by `ip`
topologySpreadConstraints                                                           by `topologyKey`

An item with `$patch: delete` removes the one of its key; `$patch: replace` in a map, or as a list's item, replaces all
of it. A volume names one source and a variable one value: another kind of it in the patch takes its place.
"""

from typing import Any

JsonObject = dict[str, Any]

MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_ONE_SOURCE = {"volumes": "name", "env": "name"}
"""Lists whose items hold exactly one of several fields beside their key, so that an item replaces the old one: merging
`emptyDir` with `persistentVolumeClaim`, or `value` with `valueFrom`, would make an object that no API server takes."""
_DIRECTIVE = "$patch"


class TemplatePatchError(ValueError):
    """Say which part of `spec.template` cannot be merged, and what would work."""


def patch_template(template: JsonObject, patch: JsonObject, path: str = "spec.template") -> JsonObject:
    """Return `template` with `patch` laid over it; raises TemplatePatchError. Neither argument is changed."""
    if patch.get(_DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    merged = dict(template)
    for key, value in patch.items():
        if key == _DIRECTIVE or key.startswith("$"):
            raise TemplatePatchError(f"{path}.{key} is {value!r}, which is not understood; write $patch: replace")
        where = f"{path}.{key}"
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            old = merged.get(key)
            merged[key] = patch_template(old if isinstance(old, dict) else {}, value, where)
        elif isinstance(value, list) and key in MERGE_KEYS:
            old = merged.get(key)
            merged[key] = _merge_list(old if isinstance(old, list) else [], value, key, where)
        else:
            merged[key] = value
    return merged


def _merge_list(old: list[Any], patch: list[Any], field: str, path: str) -> list[Any]:
    key = MERGE_KEYS[field]
    if any(item == {_DIRECTIVE: "replace"} for item in patch):
        return [item for item in patch if item != {_DIRECTIVE: "replace"}]
    merged = list(old)
    for index, item in enumerate(patch):
        where = f"{path}[{index}]"
        if not isinstance(item, dict) or key not in item:
            raise TemplatePatchError(f"{where} has no {key}, by which {field} are merged; write {key}: …")
        place = next((at for at, kept in enumerate(merged) if kept.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            merged = [kept for kept in merged if kept.get(key) != item[key]]
        elif place is None:
            merged.append(patch_template({}, item, where))
        elif field in _ONE_SOURCE and _names_another_source(merged[place], item, key):
            merged[place] = patch_template({}, item, where)
        else:
            merged[place] = patch_template(merged[place], item, where)
    return merged


def _names_another_source(old: JsonObject, item: JsonObject, key: str) -> bool:
    return not {name for name in item if name != key} & {name for name in old if name != key}
