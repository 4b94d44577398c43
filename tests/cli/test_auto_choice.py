"""What `play` and `validate` say of the knobs of mode Auto: the same as `plan`, or one line on why there are none."""

import json
from pathlib import Path

import pytest

from pagefleet.api.manifest import load_manifests
from pagefleet.cli.main import run
from pagefleet.cli.plan.auto_choice import describe_auto
from tests.cli.test_manifests import manifest
from tests.support import checkpoints

GPU = ", accelerator: {resource: nvidia.com/gpu, memory: 24Gi}"


@pytest.fixture(scope="module")
def eight_billion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_model(tmp_path_factory.mktemp("models") / "Llama-3.1-8B", checkpoints.llama_3_1_8b())


def described(text: str, **options: float) -> list[str]:
    (loaded,) = load_manifests(text, "m.yaml").services
    return describe_auto(loaded.service, **options)


def test_validate_tells_the_knobs_of_auto_as_plan_does(
    eight_billion: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = f"{GPU}, engine: {{maxNumBatchedTokens: 512, maxModelLen: 4096}}, tuning: {{objective: memory}}"
    file = tmp_path / "service.yaml"
    file.write_text(manifest(spec=spec, uri=f"file://{eight_billion}"))
    assert run(["validate", str(file)]) == 0
    valid, head, *lines = capfd.readouterr().out.splitlines()
    assert valid == "Valid: chat."
    assert head == "chat: tuning.mode Auto would choose on gpu with 24.0 GiB, for memory:"
    assert run(["plan", str(file), "--json"]) == 0
    (document,) = json.loads(capfd.readouterr().out)
    planned = [f"  --{one['knob']} {one['value']}: {one['reason']}" for one in document["choices"]]
    assert [line.split()[0] for line in lines] == ["--block-size", "--gpu-memory-utilization", "--max-num-seqs"]
    assert set(lines) <= set(planned), "what the user has set is no choice"


def test_a_replica_that_shares_the_machine_is_planned_for_its_part(eight_billion: Path) -> None:
    text = manifest(spec=GPU.replace("24Gi", "48Gi"), uri=f"file://{eight_billion}")
    assert described(text, memory_share=0.5) == described(manifest(spec=GPU, uri=f"file://{eight_billion}"))
    assert described(text) != described(text, memory_share=0.5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (manifest(), "organisation/model is not in the local cache; pagefleet plan asks the hub"),
        (
            manifest(uri="pvc://claim/model"),
            "spec.model.uri is pvc://claim/model",
        ),
        (manifest(uri="file:///none"), "model /none does not exist"),
        (
            manifest(uri="FOLDER", spec=", accelerator: {resource: nvidia.com/gpu}"),
            "the accelerator's memory",
        ),
        (manifest(uri="FOLDER", spec=GPU.replace("24", "8")), "Llama-3.1-8B does not fit gpu: weights 15.0 GiB"),
    ],
)
def test_what_cannot_be_planned_here_is_one_line(text: str, sentence: str, eight_billion: Path) -> None:
    (line,) = described(text.replace("FOLDER", f"file://{eight_billion}"))
    assert line.startswith(f"chat: its knobs are not planned: {sentence}")


def test_tuning_that_is_off_has_nothing_to_say() -> None:
    assert described(manifest(spec=", tuning: {mode: 'Off'}")) == []
