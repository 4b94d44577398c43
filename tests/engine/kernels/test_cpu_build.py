"""Building the C kernels: every level compiles without a warning, once, and a broken compiler is a sentence."""

import subprocess
from pathlib import Path

import pytest

from pagefleet.engine.kernels.cpu import build
from tests.support.compiled import Said, answer_of, compile_key


def compiler() -> str:
    path = build.find_compiler()
    assert path is not None, "the tests need gcc"
    return path


@pytest.mark.parametrize("level", build.LEVELS)
def test_every_level_compiles_without_a_warning(level: str, tmp_path: Path) -> None:
    """Lightly optimised, which is enough for all warnings; this machine may not be able to run the result."""
    flags = [flag for flag in build.FLAGS if flag not in ("-O3", "-shared")]
    sources = sorted(build.SOURCES.glob("*.c"))
    command = [compiler(), *flags, "-O1", *build.LEVELS[level], "-c", *map(str, sources)]

    def run() -> Said:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return Said(done.returncode, "\n".join(sorted(path.stem for path in tmp_path.glob("*.o"))), done.stderr)

    result = answer_of(f"objects-{level}", compile_key(command), run)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split() == [path.stem for path in sources]


def test_a_library_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEFLEET_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("-shared", "-fPIC"))
    source = tmp_path / "sources" / "one.c"
    source.parent.mkdir()
    source.write_text("int one(void) { return 1; }\n")
    monkeypatch.setattr(build, "SOURCES", source.parent)
    build.source_hash.cache_clear()
    try:
        first = build.build_library("avx2", compiler())
        made_ns = first.stat().st_mtime_ns
        assert build.build_library("avx2", compiler()).stat().st_mtime_ns == made_ns
        source.write_text("int one(void) { return 2; }\n")
        build.source_hash.cache_clear()
        assert build.build_library("avx2", compiler()) != first
        source.write_text("int one(void) { return }\n")
        build.source_hash.cache_clear()
        with pytest.raises(build.BuildFailed, match=r"refuses the CPU kernels for avx2: (.|\n)*error"):
            build.build_library("avx2", compiler())
        assert len(list((tmp_path / "kernels").iterdir())) == 2, "a failed build leaves nothing behind"
    finally:
        build.source_hash.cache_clear()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(build.BuildFailed, match="cannot be built in"):
        build.compile_library("avx2", compiler(), tmp_path / "file" / "x.so")


def test_a_prebuilt_library_counts_only_for_these_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.prebuilt_library("avx2") is None
    monkeypatch.setenv(build.PREBUILT_VARIABLE, str(tmp_path))
    (tmp_path / "avx2-0123456789abcdef.so").touch()
    assert build.prebuilt_library("avx2") is None
    right = tmp_path / f"avx2-{build.source_hash()}.so"
    right.touch()
    assert build.prebuilt_library("avx2") == right
