"""Builders for tests of manifests."""

from pagefleet.api.manifest import ManifestSet, load_manifests

HEAD = "apiVersion: serving.pagefleet.io/v1alpha1\nkind: InferenceService\n"


def manifest(name: str = "chat", spec: str = "", uri: str = "hf://a/b") -> str:
    """Write a manifest: apiVersion on line 1, the name on 3, the model on 5, `spec`'s other lines from 6 on."""
    return f"{HEAD}metadata: {{name: {name}}}\nspec:\n  model: {{uri: {uri!r}}}\n{spec}"


def errors(text: str) -> list[str]:
    return [str(error) for error in load_manifests(text, "m.yaml").errors]


def names(found: ManifestSet) -> list[str]:
    return [loaded.service.metadata.name for loaded in found.services]
