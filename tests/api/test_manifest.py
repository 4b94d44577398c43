from pathlib import Path

import pytest

from pagefleet.api.manifest import MAX_FILE_BYTES, load_manifests, read_manifests
from tests.api.manifests import HEAD, errors, manifest, names


def test_documents_know_their_place() -> None:
    text = f"# comment\n---\n{manifest('one')}---\n# nothing here\n---\n\n{manifest('two')}"
    found = load_manifests(text, "m.yaml")
    assert not found.errors
    assert [(loaded.document, loaded.line, loaded.file) for loaded in found.services] == [
        (1, 3, "m.yaml"),
        (3, 12, "m.yaml"),
    ]


def test_other_kinds_are_skipped() -> None:
    text = (
        "apiVersion: v1\nkind: Secret\nmetadata: {name: hf-token}\n---\n"
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: theirs}\nspec: {x: 1}\n---\n"
        f"apiVersion: v1\nkind: Service\n---\n{manifest()}"
    )
    found = load_manifests(text, "m.yaml")
    assert not found.errors
    assert [(skipped.kind, skipped.name, skipped.line) for skipped in found.skipped] == [
        ("Secret", "hf-token", 1),
        ("InferenceService", "theirs", 5),
        ("Service", "", 10),
    ]
    assert names(found) == ["chat"]


@pytest.mark.parametrize("kind", ["v1\nkind: List", "serving.pagefleet.io/v1alpha1\nkind: InferenceServiceList"])
def test_lists(kind: str) -> None:
    item = "- {apiVersion: serving.pagefleet.io/v1alpha1, kind: InferenceService, metadata: {name: %s}, spec: %s}\n"
    good = "{model: {uri: 'hf://a/b'}}"
    text = f"apiVersion: {kind}\nmetadata: {{resourceVersion: ''}}\nitems:\n" + item % ("a", good) + item % ("b", good)
    assert names(load_manifests(text, "m.yaml")) == ["a", "b"]
    assert errors(text + item % ("c", "{model: {uri: 'hf://a/b'}, x: 1}")) == [
        "m.yaml:7 items[2].spec.x: unknown field; known here: accelerator, autoscaling, engine, model, replicas, "
        "rollout, template, tuning"
    ]


def test_anchors_aliases_and_merge_keys() -> None:
    text = f"""apiVersion: v1
kind: List
items:
- {HEAD.replace(chr(10), chr(10) + "  ")}metadata: {{name: one}}
  spec: &defaults
    model: {{uri: "hf://a/b"}}
    engine: &engine {{blockSize: 16, maxNumSeqs: 8}}
- {HEAD.replace(chr(10), chr(10) + "  ")}metadata: {{name: two}}
  spec:
    <<: *defaults
    engine:
      <<: [{{blockSize: 64}}, *engine]
      maxNumSeqs: 4
"""
    found = load_manifests(text, "m.yaml")
    assert not found.errors
    engine = found.services[1].service.spec.engine
    assert (engine.block_size, engine.max_num_seqs) == (64, 4)
    assert found.services[0].service.spec.engine.block_size == 16


def test_mistake_behind_an_anchor_is_told_once() -> None:
    item = "- {apiVersion: serving.pagefleet.io/v1alpha1, kind: InferenceService, metadata: {name: %s}, spec: %s}\n"
    text = (
        "apiVersion: v1\nkind: List\nitems:\n"
        + item % ("a", "&s {model: {uri: 'hf://a/b', x: 1}}")
        + item % ("b", "*s")
    )
    assert len(errors(text)) == 1


def test_status_and_server_fields_of_kubectl_get_are_fine() -> None:
    text = manifest() + "status: {conditions: 5, inventedLater: 1}\n"
    text = text.replace("{name: chat}", "{name: chat, uid: x, creationTimestamp: 2026-01-01T00:00:00Z, generation: 2}")
    assert names(load_manifests(text, "m.yaml")) == ["chat"]


def test_section_with_all_lines_commented_out() -> None:
    assert names(load_manifests(manifest(spec="  engine:\n    # blockSize: 32\n"), "m.yaml")) == ["chat"]


def test_windows_text() -> None:
    assert names(load_manifests("\ufeff" + manifest().replace("\n", "\r\n"), "m.yaml")) == ["chat"]


def test_same_name_twice() -> None:
    assert errors(f"{manifest()}---\n{manifest()}") == [
        "m.yaml:9 (document 2) metadata.name: chat is also the name of the service on line 1; rename one of them"
    ]


def test_same_model_name_twice() -> None:
    text = f"{manifest('one')}---\n{manifest('two').replace('uri:', 'name: one, uri:')}"
    assert errors(text) == [
        "m.yaml:11 (document 2) spec.model.name: "
        "one is also the model name of the service on line 1; rename one of them"
    ]


def test_namespaces_keep_names_apart() -> None:
    assert errors(f"{manifest()}---\n{manifest('chat, namespace: other')}") == []


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(manifest())
    (loaded,) = read_manifests(path).services
    assert loaded.file == str(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: b\nc: \xe9\n")
    large = tmp_path / "large.gguf"
    large.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    assert [
        str(error) for path in (latin, large, tmp_path, tmp_path / "none") for error in read_manifests(path).errors
    ] == [
        f"{latin}:2: the byte 0xE9 is not UTF-8; save the file as UTF-8",
        f"{large}: the file is larger than 1 MiB, so it is not a manifest",
        f"{tmp_path}: this is a folder; name a file in it",
        f"{tmp_path}/none: there is no such file",
    ]


def test_file_that_cannot_be_read() -> None:
    """This one opens and then fails, for root too."""
    (error,) = read_manifests("/proc/self/mem").errors
    assert "can't be read" in error.message


def test_path_with_a_nul() -> None:
    (error,) = read_manifests("a\0b").errors
    assert "can't be read" in error.message
