"""`pagefleet.cli.play.manifests`: from files to what should run here."""

import asyncio
from pathlib import Path

import pytest

from pagefleet.cli.play.manifests import load, share_of_cores, watch


def manifest(name: str = "chat", spec: str = "", uri: str = "hf://organisation/model") -> str:
    return f"""---
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec: {{model: {{uri: "{uri}"}}{spec}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "manifest.yaml"


def test_a_service_is_rendered_with_its_share_of_the_memory(file: Path) -> None:
    file.write_text(manifest(spec=", replicas: 2, engine: {blockSize: 32}"))
    (service,) = load([file], extra_flags=("--drain-timeout", "5")).services
    assert (service.wanted.name, service.wanted.served_name, service.wanted.replicas) == ("chat", "chat", 2)
    arguments = service.render(8001, 9001, 0.5)
    assert arguments[:3] == ["engine", "serve", "organisation/model"]
    assert arguments[-2:] == ["--drain-timeout", "5"]
    flags = dict(zip(arguments[3::2], arguments[4::2], strict=True))
    assert (flags["--host"], flags["--port"], flags["--admin-port"]) == ("127.0.0.1", "8001", "9001")
    assert (flags["--block-size"], flags["--gpu-memory-utilization"]) == ("32", "0.45")


@pytest.mark.parametrize(
    ("before", "after", "is_changed"),
    [
        ("", ", replicas: 3", False),
        ("", ", autoscaling: {mode: Active}", False),
        ("", ", engine: {blockSize: 32}", True),
        ("", ", accelerator: {resource: nvidia.com/gpu}", True),
    ],
)
def test_only_what_the_engine_is_told_makes_a_change(file: Path, before: str, after: str, is_changed: bool) -> None:
    configurations = []
    for spec in (before, after):
        file.write_text(manifest(spec=spec))
        configurations.append(load([file]).services[0].wanted.configuration)
    assert (configurations[0] != configurations[1]) is is_changed


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            manifest(spec=", engine: {weights: {quantization: sparse24}}"),
            "spec.engine.weights.quantization is sparse24",
        ),
        (manifest(uri="pvc://claim/chat"), "spec.model.uri is pvc://claim/chat"),
        (manifest().replace('model"}', 'model", tokenSecret: {name: hf}}'), "spec.model.tokenSecret is hf"),
    ],
)
def test_what_cannot_run_here_is_a_service_with_a_refusal(file: Path, text: str, refusal: str) -> None:
    file.write_text(text)
    loaded = load([file])
    assert not loaded.errors
    assert loaded.services[0].wanted.refusal.startswith(refusal)


def test_a_token_in_the_environment_stands_for_the_secret(file: Path) -> None:
    file.write_text(manifest().replace('model"}', 'model", tokenSecret: {name: hf}}'))
    assert load([file], has_hub_token=True).services[0].wanted.refusal == ""


def test_what_has_no_effect_here_is_said(file: Path) -> None:
    file.write_text(manifest(spec=", template: {spec: {nodeSelector: {a: b}}}"))
    (template,) = load([file]).notes
    assert template.startswith("chat: spec.template has no effect here")


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (manifest("chat"), manifest("chat"), "two.yaml:2: metadata.name chat is also used in "),
        (
            manifest("chat"),
            manifest("code").replace("uri:", "name: chat, uri:"),
            "two.yaml:2: the model name chat is also",
        ),
    ],
)
def test_names_are_unique_over_all_files(tmp_path: Path, first: str, second: str, error: str) -> None:
    files = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    for file, text in zip(files, (first, second), strict=True):
        file.write_text(text)
    errors = load(files).errors
    assert len(errors) == 1
    assert error in errors[0]


@pytest.fixture
def written(file: Path) -> Path:
    file.write_text(manifest())
    return file


async def test_changes_are_seen_and_neighbours_are_not(written: Path) -> None:
    def change(path: Path) -> None:
        path.write_text(manifest("code"))

    changes = watch([written])
    seen = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0.3)
    change(written.with_name("neighbour.yaml"))
    await asyncio.sleep(0.3)
    assert not seen.done()
    change(written)
    await asyncio.wait_for(seen, 60)
    await changes.aclose()


@pytest.mark.parametrize(
    ("cores", "share", "threads"), [(2, 1.0, None), (2, 0.5, 1), (9, 0.5, 4), (9, 1 / 3, 2), (1, 0.5, 1)]
)
def test_replicas_share_the_cores(cores: int, share: float, threads: int | None) -> None:
    assert share_of_cores(cores, share) == threads
