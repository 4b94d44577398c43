"""Where the converted copy of a GGUF file is looked for."""

from pathlib import Path

import pytest

from pagefleet.engine.gguf_cache import cached_conversion, conversion_folder
from pagefleet.engine.model_source import ModelSource


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    monkeypatch.setenv("PAGEFLEET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(b"GGUF")
    return ModelSource(tmp_path / "models", "a.gguf", is_quantized=True)


def place(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_there_is_none_before_a_conversion(source: ModelSource) -> None:
    assert cached_conversion(source) is None


def test_the_copy_in_the_cache_is_found(source: ModelSource) -> None:
    folder = place(conversion_folder(source))
    assert cached_conversion(source) == ModelSource(folder, is_quantized=True)


def test_a_copy_beside_the_file_comes_first(source: ModelSource) -> None:
    place(conversion_folder(source))
    folder = place(source.folder / conversion_folder(source).name)
    assert cached_conversion(source) == ModelSource(folder, is_quantized=True)


def test_a_copy_of_another_content_is_not_taken(source: ModelSource) -> None:
    place(source.folder / conversion_folder(source).name)
    source.path.write_bytes(b"GGUF, but another")
    assert cached_conversion(source) is None
