"""Read what the planner needs of a model, wherever it is: a folder, a GGUF file, a Python package, or the hub."""

from pathlib import Path

from pagefleet.capacity import ModelFacts, read_model
from pagefleet.cli.errors import UserMistake, require_extra
from pagefleet.cli.plan.gguf_header import read_gguf
from pagefleet.cli.plan.hub_headers import read_hub_model
from pagefleet.cli.plan.safetensors_headers import read_headers, read_json


def read_model_facts(model: str, *, revision: str | None = None, asks_hub: bool = True) -> ModelFacts:
    """Return the facts of the engine's MODEL without reading its weights; raises UserMistake or CannotPlan."""
    if not model:
        raise UserMistake("MODEL is empty: write a folder, a GGUF file, a Hugging Face id or package://module/file.")
    if _is_hub_id(model):
        return read_hub_model(model, revision, asks_hub=asks_hub)
    require_extra("engine", ("pagefleet.engine",))  # an image of the operator does without
    from pagefleet.engine.errors import StartupError
    from pagefleet.engine.model_source import resolve_model

    try:
        source = resolve_model(model, lambda _share: None)
    except StartupError as error:
        raise UserMistake(str(error)) from None
    if source.gguf_file is not None:
        return read_gguf(source.path)
    folder = source.folder.resolve()
    return read_model(folder.name, read_json(folder / "config.json"), read_headers(folder))


def _is_hub_id(model: str) -> bool:
    """Tell whether the engine would ask the hub for it."""
    looks_like_a_path = model.startswith((".", "/", "~")) or model.endswith(".gguf") or model.count("/") > 1
    return not ("://" in model or looks_like_a_path or Path(model).exists())
