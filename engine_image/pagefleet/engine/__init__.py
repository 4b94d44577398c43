"""pagefleet's engine: paged attention, one token-budget scheduler, an OpenAI server in front."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagefleet.engine.config import EngineConfig as EngineConfig
    from pagefleet.engine.llm import LLM as LLM
    from pagefleet.engine.sampling_params import SamplingParameters as SamplingParameters

_HOMES = {
    "LLM": "pagefleet.engine.llm",
    "EngineConfig": "pagefleet.engine.config",
    "SamplingParameters": "pagefleet.engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Import the offline engine when it is named: it brings torch, which the server's own process does without."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
