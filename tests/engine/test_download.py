"""Models of a hub: downloaded with progress, found again without it, refused with a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub import Hub
from tests.support.tiny_models import make_tiny_model

# In a process of its own, because the hub client reads its environment when it is imported.
SCRIPT = """
import json, sys
from pagefleet.engine.errors import StartupError
from pagefleet.engine.model_source import resolve_model
model, revision = json.loads(sys.argv[1])
progress = []
try:
    folder = str(resolve_model(model, progress.append, revision=revision).folder)
except StartupError as error:
    folder = f"refused: {error}"
print(json.dumps([folder, progress]))
"""
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=4)


def resolve(
    model: str, *, home: Path, endpoint: str, revision: str | None = None, **environment: str
) -> tuple[str, list[float | None]]:
    """Resolve a model with this hub and this cache; return the folder or the refusal, and the progress."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([model, revision])],
        env={
            **os.environ,
            "HF_HOME": str(home),
            "HF_ENDPOINT": endpoint,
            "PYTHONPATH": str(REPOSITORY / "engine_image"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    answer: list[Any] = json.loads(result.stdout.splitlines()[-1])
    return answer[0], answer[1]


def test_download_with_progress_and_then_without_the_hub(folder: Path, tmp_path: Path) -> None:
    with Hub(folder, chunk_delay_s=0.1) as hub:
        found, progress = resolve("organisation/tiny", home=tmp_path, endpoint=hub.url)
    assert {file.name for file in Path(found).iterdir()} == {file.name for file in folder.iterdir()}
    assert (Path(found) / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert progress[:2] == [None, 0.0]
    shares = [share for share in progress if share is not None]
    assert shares == sorted(shares)
    assert any(0 < share < 1 for share in shares), "a slow download reports what is between the ends"

    assert resolve("organisation/tiny", home=tmp_path, endpoint=hub.url, HF_HUB_OFFLINE="1") == (found, [None])
    assert resolve("organisation/tiny", home=tmp_path, endpoint=hub.url)[0] == found, "the hub is gone, the files not"


def test_a_revision_is_asked_for(folder: Path, tmp_path: Path) -> None:
    with Hub(folder) as hub:
        resolve("organisation/tiny", home=tmp_path, endpoint=hub.url, revision="v2")
        assert "/api/models/organisation/tiny/revision/v2" in hub.paths
        refused, _ = resolve("organisation/tiny", home=tmp_path, endpoint=hub.url, revision="v3")
    assert refused == (
        "refused: the hub answers 404 for model organisation/tiny at revision v3: check the name, and HF_TOKEN if it "
        "is private"
    )


def test_what_cannot_be_had(folder: Path, tmp_path: Path) -> None:
    with Hub(folder) as hub:
        unknown, _ = resolve("organisation/other", home=tmp_path, endpoint=hub.url)
    assert "the hub answers 404 for model organisation/other: check the name" in unknown
    unreachable, _ = resolve("organisation/tiny", home=tmp_path, endpoint="http://127.0.0.1:9")
    assert "is not in the local cache and the hub cannot be reached; give a path instead" in unreachable


def test_a_repository_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "notes.txt").write_text("nothing here")
    with Hub(tmp_path / "repository") as hub:
        refused, _ = resolve("organisation/tiny", home=tmp_path / "home", endpoint=hub.url)
    assert refused == (
        "refused: repository organisation/tiny holds no config.json, so it is not a model for this engine"
    )
